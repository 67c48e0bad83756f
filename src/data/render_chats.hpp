#pragma once

namespace llamesh::data {

/// The program in render_chats.py.
extern const char* const render_chats;

}  // namespace llamesh::data
