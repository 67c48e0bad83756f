#pragma once

#include <string>
#include <string_view>

namespace llamesh::data {

// Data in Parquet and Arrow, which Debian 12 has no library for, and on the Hugging Face Hub: each
// message has the command that makes JSON lines of them, with Hugging Face's datasets.

/// Returns advice on a file that begins with these bytes; empty if it is neither Parquet nor Arrow.
std::string advice_on_table(const std::string& path, std::string_view bytes);

/// Throws a user error if the folder is a dataset or several, as save_to_disk() writes them.
void refuse_saved_dataset(const std::string& folder);

/// Throws a user error if there is no such file, but the name may be that of a dataset on the Hub:
/// "owner/name".
void refuse_hub_name(const std::string& name);

}  // namespace llamesh::data
