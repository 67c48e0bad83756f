#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "tokenizer/tokenizer.hpp"

namespace llamesh::tokenizer {

/// Chunk's place in its document.
enum class DocumentEnd : bool { no, yes };

/// Callback for a chunk's ids, in order, with the number of text bytes that they encode.
using TokenSink =
    std::function<void(std::span<const std::int32_t> ids, std::size_t text_bytes, DocumentEnd end)>;

/// Encodes documents in order, each as the tokenizer's prefix tokens, its text and the suffix
/// tokens, and passes the ids to `sink` on the calling thread. `threads` threads work on chunks of
/// text; the ids do not depend on their number. Uses about a MiB of text and its ids per thread, or
/// more if a text cannot be split. Skips empty documents. Rethrows what a thread or the sink
/// throws.
void encode_documents(const Tokenizer& tokenizer, std::span<const std::string_view> documents,
                      int threads, const TokenSink& sink);

/// Returns the number of threads that this process's CPU affinity allows.
int available_threads();

}  // namespace llamesh::tokenizer
