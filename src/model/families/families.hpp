#pragma once

#include "model/family.hpp"

namespace llamesh::model {

extern const Family llama_family;  ///< LlamaForCausalLM: Llama 2, 3, 3.1 and 3.2

}  // namespace llamesh::model
