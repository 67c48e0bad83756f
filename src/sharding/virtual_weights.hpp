#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/turns.hpp"
#include "device/buffer.hpp"
#include "sharding/fsdp.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/slot_pool.hpp"
#include "sharding/virtual_ranks.hpp"

namespace llamesh::sharding {

/// Weights as several virtual ranks have them: parts of this rank's parts, cut when a unit is
/// gathered, in the order and with the neighbors that a real rank has in memory. Gradients are
/// joined, and those that are partial added up, before Fsdp reduces them.
///
/// Virtual ranks compute by Turns: the first to enter a module gathers it, and all leave it
/// together.
class VirtualWeights {
 public:
  /// For the virtual ranks `members` of the mesh that `parts` divides, one for each turn, on a rank
  /// of the mesh that `whole` divides. All arguments are borrowed. Both layouts have the same
  /// units.
  VirtualWeights(Fsdp& fsdp, const ShardLayout& whole, int rank, const ShardLayout& parts,
                 const VirtualRanks& ranks, const std::vector<int>& members, Turns& turns);
  /// Returns what the model of a turn calls.
  model::Weights& of(int turn) { return views_[static_cast<std::size_t>(turn)]; }

 private:
  class View final : public model::Weights {
   public:
    View(VirtualWeights& all, int turn) : all_(all), turn_(static_cast<std::size_t>(turn)) {}
    void enter(model::ModuleId module, model::Pass pass) override {
      if (turn_ == 0) all_.enter(module, pass);
    }
    void leave(model::ModuleId module, model::Pass pass) override {
      const auto together = [&] { all_.leave(module, pass); };
      const bool is_last = static_cast<int>(turn_) + 1 == all_.ranks_.count();
      all_.turns_.meet(is_last ? together : std::function<void()>(), Turns::IfFailed::returns);
    }
    Tensor parameter(model::ParameterId id) override { return all_.parameter(turn_, id); }
    model::GradientSlot gradient(model::ParameterId id) override {
      return all_.gradient(turn_, id);
    }
    void no_gradient(model::ParameterId id) override;

   private:
    VirtualWeights& all_;
    std::size_t turn_;
  };

  /// A virtual rank's part within this rank's: a matrix with columns of another.
  struct Part {
    std::int64_t rows, cols, first, count;
    bool is_first_copy;  ///< no turn before with the same tokens has the same part
  };
  /// A unit's parts, and the pools in which a turn's units have them.
  struct UnitOfTurn {
    Tensor weights, gradients;  ///< (numel of the part), while in use
  };
  struct Turn {
    SlotPool weights, gradients;  ///< in bytes
    std::vector<UnitOfTurn> units;
    std::vector<Part> parts;    ///< by parameter
    std::vector<bool> written;  ///< likewise: it has a gradient
  };

  void enter(model::ModuleId module, model::Pass pass);
  void leave(model::ModuleId module, model::Pass pass);
  Tensor parameter(std::size_t turn, model::ParameterId id);
  model::GradientSlot gradient(std::size_t turn, model::ParameterId id);
  Part part_of(model::ParameterId id, int rank, int member) const;
  /// Returns true if a turn computes the parameter's gradient: of copies, which all have the whole
  /// gradient, only the first does.
  bool has_gradient(const Turn& turn, model::ParameterId id) const {
    return is_partial(id) || turn.parts[model::index(id)].is_first_copy;
  }
  bool is_partial(model::ParameterId id) const {
    return layout_.dims().without_ones(layout_.placement(id).partial).any();
  }
  void cut(std::size_t unit);
  void release(std::size_t unit);
  void join_gradients(std::size_t unit);
  void add_up(model::ParameterId id, std::size_t turn, std::size_t from);
  void add_up_copies(model::ParameterId id);
  void add_up_context(model::ParameterId id);
  void join(const Tensor& whole, const Part& part, const Tensor& gradient, Accumulate accumulate);
  Tensor in_unit(const Tensor& unit, model::ParameterId id) const;

  Fsdp& fsdp_;
  const ShardLayout& whole_;
  const ShardLayout& layout_;  ///< divided among virtual ranks
  VirtualRanks ranks_;
  Turns& turns_;
  device::Stream& compute_ = device::compute_stream();
  std::deque<View> views_;
  std::vector<std::vector<std::size_t>> held_units_of_;  ///< by module
  std::vector<int> entered_;                             ///< by unit: nesting depth
  std::deque<Turn> members_;
  device::Buffer scratch_;  ///< for sums
};

}  // namespace llamesh::sharding
