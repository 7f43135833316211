// Files that are there whole or not at all, and those that grow. All throw std::runtime_error,
// which says what is wrong with which file.
#pragma once

#include <cstdint>
#include <string>

namespace trainer {

// Replaces what is there, on the disk when it returns; after an error what was there is there
// still. A symbolic link stays one. Appends to what is no regular file: a pipe, a device.
void WriteFile(const std::string& path, const std::string& text);
void AppendToFile(const std::string& path, const std::string& text);

// Whether the file can be written, and files in the directory, which need not be there yet: as far
// as can be told without changing anything.
void CheckFile(const std::string& path);
void CheckDirectory(const std::string& path);
// With those above it. Nothing, if it is there.
void MakeDirectory(const std::string& path);

// FNV-1a over the file's bytes.
uint64_t Digest(const std::string& path);

}  // namespace trainer
