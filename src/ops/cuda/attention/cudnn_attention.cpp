#include "ops/cuda/attention/cudnn_attention.hpp"

#include <cudnn.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "device/buffer.hpp"
#include "device/cuda.hpp"
#include "device/cuda/runtime.hpp"
#include "ops/cuda/attention/attention_choice.hpp"
#include "ops/cuda/attention/cudnn_graph.hpp"
#include "ops/cuda/launch.cuh"

namespace llamesh::ops::cuda {
namespace {

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(ExitCode::internal_error, "{} failed in cuDNN: {}", what, cudnnGetErrorString(status));
}

/// Returns true if every row is 16-byte aligned (an empty tensor's rows are).
bool aligned(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0 &&
         t.row_stride() * size_of(t.dtype()) % 16 == 0;
}

/// Returns true if a gradient is absent (forward pass) or has the same layout as its tensor.
bool lies_as(const Tensor& gradient, const Tensor& of) {
  return !gradient || (aligned(gradient) && gradient.row_stride() == of.row_stride());
}

bool suits(const AttentionCall& c, const AttentionGradients& g) {
  const auto& s = c.shape;
  const bool latent = s.head_dim == 192 && s.value_dim == 128;  // DeepSeek's
  return c.q.dtype() == DType::bf16 && !c.document_starts && s.softcap == 0 && s.sequence > 1 &&
         s.keys == s.sequence &&
         (latent || (s.value_dim == s.head_dim && s.head_dim <= 128 && s.head_dim % 8 == 0)) &&
         aligned(c.q) && aligned(c.k) && aligned(c.v) && aligned(c.out) &&
         reinterpret_cast<std::uintptr_t>(c.log_sum_exp.data()) % 16 == 0 && lies_as(g.dq, c.q) &&
         lies_as(g.dk, c.k) && lies_as(g.dv, c.v) && lies_as(g.dout, c.out);
}

std::string name_of(const CudnnProblem& problem) {
  return fmt::format("{} heads of {}{} and {} tokens", problem.heads, problem.head_dim,
                     problem.value_dim != problem.head_dim
                         ? fmt::format(" with values of {}", problem.value_dim)
                         : "",
                     problem.sequence);
}

/// Returns the scratch limit in bytes: 1/16 of the GPU's memory. It must not depend on what is
/// free, because a run and its continuation must choose the same kernels.
std::int64_t max_scratch() {
  return device::cuda::memory_bytes() / 16;
}

/// cuDNN handle, cached graphs, and one shared scratch buffer, because attention calls run in order
/// on the compute stream. Never destroyed: CUDA may be gone before main() ends.
class Library {
 public:
  /// Returns null if cuDNN cannot be used.
  static Library* instance() {
    static auto* const library = make();
    return library;
  }

  /// Returns null if cuDNN does not support this pass and shape, or wants too much scratch for it.
  const CudnnGraph* graph(const AttentionCall& call, AttentionPass pass) {
    const Key key{CudnnProblem(call), pass};
    const auto found = graphs_.find(key);
    return found != graphs_.end() ? found->second.get() : make_graph(key);
  }

  cudnnHandle_t handle(device::Stream& stream) {
    check(cudnnSetStream(handle_, device::cuda::native(stream)), "cudnnSetStream");
    return handle_;
  }

  std::byte* scratch(device::Stream& stream, const CudnnGraph& graph) {
    const auto bytes = graph.scratch_bytes();
    if (scratch_.bytes() < bytes) {
      stream.record().wait();  // the old buffer is no longer in use
      scratch_ = {};           // free first: both must not coexist
      scratch_ = device::Buffer(bytes);
    }
    return scratch_.data();
  }

 private:
  struct Key {
    CudnnProblem problem;
    AttentionPass pass;
    auto operator<=>(const Key&) const = default;
  };

  Library() { check(cudnnCreate(&handle_), "cudnnCreate"); }

  static Library* make() {
    const auto& cudnn = cudnn_library();  // device/cuda rejects GPUs older than Ampere
    const bool usable = cudnn.handle != nullptr;
    validate(usable || (attention_choice(AttentionPass::forward) != AttentionChoice::cudnn &&
                        attention_choice(AttentionPass::backward) != AttentionChoice::cudnn),
             "LLAMESH_ATTENTION asks for cuDNN, but {}; unset it for the built-in kernels",
             cudnn.text);
    if (usable)
      spdlog::info("attention: {} in bf16 where a row is one whole document", cudnn.text);
    else
      spdlog::info("attention: built-in kernels, since {}", cudnn.text);
    return usable ? new Library : nullptr;
  }

  const CudnnGraph* make_graph(const Key& key) {
    const auto& problem = key.problem;
    auto made = std::make_unique<CudnnGraph>(problem, key.pass, handle_);
    // The full text names every kernel that was tried.
    auto why = made->refusal().substr(0, 300);
    std::ranges::replace(why, '\n', ' ');
    const bool asked_for = attention_choice(key.pass) == AttentionChoice::cudnn;
    if (const auto max = max_scratch(); made->scratch_bytes() > max && !asked_for)
      why = fmt::format("cuDNN wants {} bytes of scratch, which may have {}", made->scratch_bytes(),
                        max);
    validate(why.empty() || !asked_for,
             "LLAMESH_ATTENTION asks for cuDNN, but of {}: {}; unset it for the built-in kernels",
             name_of(problem), why);
    if (!why.empty()) {
      spdlog::info("attention of {}{}, {} pass: built-in kernels, since {}", name_of(problem),
                   problem.window > 0 ? fmt::format(" in windows of {}", problem.window) : "",
                   key.pass == AttentionPass::forward ? "forward" : "backward", why);
      made.reset();
    }
    return graphs_.emplace(key, std::move(made)).first->second.get();
  }

  cudnnHandle_t handle_ = nullptr;
  device::Buffer scratch_;
  std::map<Key, std::unique_ptr<CudnnGraph>> graphs_;
};

}  // namespace

bool can_use_cudnn(const AttentionCall& call, const AttentionGradients& gradients) {
  const auto pass = pass_of(gradients);
  if (attention_choice(pass) == AttentionChoice::automatic && !suits(call, gradients)) return false;
  auto* const library = Library::instance();
  return library != nullptr && suits(call, gradients) && library->graph(call, pass) != nullptr;
}

void cudnn_attention(Stream& stream, const AttentionCall& call,
                     const AttentionGradients& gradients) {
  auto& library = *Library::instance();
  const auto& graph = *library.graph(call, pass_of(gradients));
  graph.run(library.handle(stream), call, gradients, library.scratch(stream, graph));
}

std::int64_t max_attention_scratch() {
  const bool backward =
      tries_cudnn(AttentionPass::backward, attention_choice(AttentionPass::backward), has_wgmma());
  return backward && cudnn_library().handle != nullptr ? max_scratch() : 0;
}

std::string attention_library() {
  const auto asks = [](AttentionPass pass) {
    const auto choice = attention_choice(pass);
    return choice == AttentionChoice::automatic || choice == AttentionChoice::cudnn;
  };
  if (!asks(AttentionPass::forward) && !asks(AttentionPass::backward))
    return fmt::format("built-in kernels (LLAMESH_ATTENTION={})", std::getenv("LLAMESH_ATTENTION"));
  const auto& library = cudnn_library();
  return library.handle != nullptr ? library.text : "built-in kernels (" + library.text + ")";
}

}  // namespace llamesh::ops::cuda
