// What the elements of q, k and v are, given a normal random number.
#pragma once

#include "cases/case.h"

namespace tilewise::cases {

double query_element(const Case& c, int64_t d, double normal);
double key_element(const Case& c, int64_t j, int64_t keys, int64_t d, double normal);
double value_element(const Case& c, int64_t j, int64_t d, double normal);

}  // namespace tilewise::cases
