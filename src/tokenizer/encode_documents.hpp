#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {

/// Takes ids in order, with the bytes of text that they were made from.
using TokenSink = std::function<void(std::span<const std::int32_t> ids, std::size_t text_bytes)>;

/// Encodes documents one after another, each as the tokenizer's prefix tokens, its text and the
/// suffix tokens, and hands the ids to `sink` on the calling thread. The texts are cut into chunks
/// that `threads` threads work on; the ids do not depend on their number. Memory: about a MiB of
/// text and its ids for each thread, more where a text cannot be cut. Empty documents are left out.
/// What a thread or the sink throws is thrown here.
void encode_documents(const Tokenizer& tokenizer, std::span<const std::string_view> documents,
                      int threads, const TokenSink& sink);

/// How many threads this process may run at once by its CPU affinity.
int available_threads();

}  // namespace llamesh::tokenizer
