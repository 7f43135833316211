// Rueda's C++ API: what operations can be told besides their tensors. Included by rueda/rueda.hpp,
// which says how to use it.
#ifndef RUEDA_CPP_OPTIONS_HPP_
#define RUEDA_CPP_OPTIONS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/reduce_ops.hpp"

namespace rueda {

/// \addtogroup cpp_options
/// @{

/// Of broadcast, allgather, gather, send, recv and the functions for objects.
struct Options {
  /// Matches the operation with the other ranks', in any order of submission. Without a name, order
  /// matches it. In a group the tensors' names are this with ".0", ".1", ... behind it.
  std::string name = {};
  ProcessSet process_set = global_process_set;  ///< the ranks that take part
};

/// Of alltoall and scatter.
struct SplitOptions {
  /// How many rows go to each rank of the process set, in rank order; they add up to the tensor's
  /// first dimension. Empty: equal parts.
  std::vector<int64_t> splits = {};
  std::string name = {};                        ///< as in Options
  ProcessSet process_set = global_process_set;  ///< the ranks that take part
};

/// Of reduce.
struct ReduceOptions {
  std::string name = {};                        ///< as in Options
  reduce_op op = Average;                       ///< how elements are combined
  double prescale_factor = 1;                   ///< each input is multiplied by it first
  double postscale_factor = 1;                  ///< and the result
  ProcessSet process_set = global_process_set;  ///< the ranks that take part
};

/// Of allreduce.
struct AllreduceOptions {
  std::string name = {};                        ///< as in Options
  reduce_op op = Average;                       ///< how elements are combined
  double prescale_factor = 1;                   ///< each input is multiplied by it first
  double postscale_factor = 1;                  ///< and the result
  ProcessSet process_set = global_process_set;  ///< the ranks that take part
  /// What makes sums and averages of floats smaller on their way, such as "int8" or "powersgd:4";
  /// rueda_operation has them all. Empty: nothing does.
  std::string compression = {};
  int priority = 0;  ///< above 0: urgent, below 0: low; see rueda_operation
};

/// Of reducescatter: the same.
using ReducescatterOptions = AllreduceOptions;

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_OPTIONS_HPP_
