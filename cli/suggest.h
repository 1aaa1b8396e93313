// What a misspelt word was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tilewise::cli {

// The known word that is fewest slips away (a letter more, less or other, or two swapped); empty if none is near:
// one slip for each three letters, dashes in front not counted.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace tilewise::cli
