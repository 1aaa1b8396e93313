// Does not compile: ctest reads what the compiler says of a tensor over MEMORY.
#include <vector>

#include "tilewise/tilewise.hpp"

void refused() {
  std::vector<double> doubles(8);
  std::vector<bool> bits(8);
  const tilewise::Attention attention{.q = {MEMORY, 1, 1, 1, 8}};
}
