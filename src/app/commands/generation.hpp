#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/commands/model_options.hpp"
#include "app/models/loaded_model.hpp"
#include "app/models/model_mesh.hpp"
#include "comm/mpi/session.hpp"
#include "model/decoder.hpp"
#include "model/sampling.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::app {

/// Arguments of commands that generate text.
struct GenerationArguments : ModelArguments {
  std::optional<std::int64_t> max_tokens;  ///< per text; empty: the command's own choice
  std::optional<std::int64_t> context;     ///< tokens of a conversation; empty: 4096, see room_of()
  model::SamplingOptions sampling;
  std::string system;  ///< first message of conversations; empty: none
};

inline constexpr std::int64_t default_new_tokens =
    128;  ///< behind a prompt that is no conversation

void add_generation(CLI::App& command, GenerationArguments& to);

/// Returns the tokens that a conversation, or a record's prompt with its answer, may have: as
/// asked, or 4096 as far as the model has positions. Throws a user error if it has too few.
std::int64_t room_of(const GenerationArguments& arguments, const model::ModelConfig& config);

/// This process alone, without MPI, or all ranks that were started.
class Ranks {
 public:
  Ranks();

  int count() const { return count_; }
  bool prints() const { return !session_ || world().rank() == 0; }
  void agree(const std::function<void()>& phase) const;
  /// Returns on all ranks what the phase returns on rank 0.
  std::string on_rank_0(const std::function<std::string()>& phase) const;
  std::vector<std::int32_t> ids_on_rank_0(
      const std::function<std::vector<std::int32_t>()>& phase) const;
  /// Runs work in which ranks may be in collectives.
  void run(const std::function<void()>& work) const;
  void choose_device(const std::string& choice) const;
  void choose_threads_and_products(DType dtype) const;
  ModelMesh mesh() const { return session_ ? ModelMesh(world(), count_) : ModelMesh(); }

 private:
  const comm::Communicator& world() const { return session_->world(); }

  int count_;
  std::optional<comm::MpiSession> session_;
};

/// What a model has added to a prompt.
struct GeneratedText {
  std::string text;
  std::int64_t tokens = 0;
  double prompt_seconds = 0, seconds = 0;  ///< to the first token, and to the last
};

/// A model that generates the same text on all ranks, from the same logits.
class Generator {
 public:
  /// Loads the model and its tokenizer. Collective. Throws a user error for arguments that do not
  /// fit.
  Generator(const Ranks& ranks, const GenerationArguments& arguments);

  const LoadedModel& model() const { return *model_; }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Returns the data options behind the model, with the tokenizer in use.
  const data::DataOptions& data() const { return data_; }

  /// Makes room for texts up to this many tokens. Collective.
  void make_room(std::int64_t positions);
  std::int64_t positions() const { return decoder_->positions(); }
  /// From here on choices are those of this seed.
  void seed(std::uint64_t seed);
  /// Another token that ends a text.
  void add_end(std::int32_t id) { ends_.push_back(id); }

  /// Continues `prompt`, of which nothing is computed again that the last text had too. `text` gets
  /// each piece on all ranks; `stop` ends the text early, alike on all ranks. `visible` are the
  /// prompt's last ids: decoding starts within them. Collective.
  GeneratedText continue_from(
      std::span<const std::int32_t> prompt, std::span<const std::int32_t> visible,
      std::int64_t max_tokens, const std::function<void(const std::string&)>& text,
      const std::function<bool()>& stop = [] { return false; });

 private:
  void load(const GenerationArguments& arguments);
  std::span<const float> read(std::span<const std::int32_t> prompt);
  void check_logits(std::span<const float> logits) const;

  const Ranks& ranks_;
  std::string path_;
  DType dtype_ = DType::f32;
  model::SamplingOptions sampling_;
  std::optional<model::TokenSampler> sampler_;
  ModelMesh mesh_;
  std::unique_ptr<LoadedModel> model_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  data::DataOptions data_;
  std::vector<std::int32_t> ends_;
  std::unique_ptr<model::TensorParallel> tensor_;
  std::unique_ptr<model::Decoder> decoder_;
  std::vector<std::int32_t> fed_;  ///< what the decoder has read
};

/// Prints at once, on rank 0.
void print_now(const std::string& text);

}  // namespace llamesh::app
