// Memory of tensors that comes and goes, while their storage stays: who reads it meanwhile gets an
// exception.
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>

namespace rueda::libtorch {

// Torch before 2.13 can forbid the access to a storage's memory, but not allow it again. So for
// those this reaches StorageImpl's private flag, in the one way that the language leaves: the
// arguments of an explicit instantiation are not checked for access.
struct ForbidsAccess {
  using Member = bool c10::StorageImpl::*;
  friend Member Get(ForbidsAccess);
};
template <typename Tag, typename Tag::Member kMember>
struct Reach {
  friend typename Tag::Member Get(Tag) { return kMember; }
};
template struct Reach<ForbidsAccess, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

template <typename Storage>
void AllowAccess(Storage* storage) {
  if constexpr (requires { storage->clear_data_ptr_access_error_msg_(); }) {
    storage->clear_data_ptr_access_error_msg_();
  } else {
    storage->*Get(ForbidsAccess()) = false;
  }
}

// Takes the memory away. Who reads it is told `why`.
inline void CloseStorage(c10::StorageImpl* storage, at::Device device, std::string why) {
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(why));
}

inline void OpenStorage(c10::StorageImpl* storage, c10::DataPtr memory) {
  AllowAccess(storage);
  storage->set_data_ptr_noswap(std::move(memory));  // behind it, as it looks at the flag
}

}  // namespace rueda::libtorch
