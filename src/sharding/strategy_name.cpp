#include "sharding/strategy.hpp"

namespace llamesh::sharding {

std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::full_shard:
      return "full_shard";
    case Strategy::shard_grad_op:
      return "shard_grad_op";
    case Strategy::no_shard:
      return "no_shard";
    case Strategy::hybrid_shard:
      return "hybrid_shard";
    case Strategy::hybrid_shard_zero2:
      return "hybrid_shard_zero2";
  }
  return "?";
}

}  // namespace llamesh::sharding
