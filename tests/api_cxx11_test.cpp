// The header in C++11: the C program, compiled as C++.
#include "api_c_test.c"  // NOLINT(bugprone-suspicious-include)
