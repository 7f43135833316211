// Rueda's C++ API: how elements are combined. Included by rueda/rueda.hpp, which says how to use
// it.
#ifndef RUEDA_CPP_REDUCE_OPS_HPP_
#define RUEDA_CPP_REDUCE_OPS_HPP_

#include "rueda/rueda.h"

namespace rueda {

/// \addtogroup cpp_reductions
/// @{

/// How elements are combined; see rueda_reduce_op.
using reduce_op = rueda_reduce_op;
inline constexpr reduce_op Sum = RUEDA_SUM;
inline constexpr reduce_op Average = RUEDA_AVERAGE;
inline constexpr reduce_op Min = RUEDA_MIN;
inline constexpr reduce_op Max = RUEDA_MAX;
inline constexpr reduce_op Product = RUEDA_PRODUCT;
inline constexpr reduce_op Band = RUEDA_BAND;
inline constexpr reduce_op Bor = RUEDA_BOR;
inline constexpr reduce_op Bxor = RUEDA_BXOR;
inline constexpr reduce_op Adasum = RUEDA_ADASUM;
inline constexpr reduce_op AverageLive = RUEDA_AVERAGE_LIVE;

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_REDUCE_OPS_HPP_
