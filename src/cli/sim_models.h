// The models that --sim can name, from the catalogue that the simulated driver reads.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace kvram::cli {

// "2xA10,T4" as {"A10", "A10", "T4"}; a count that is no number from 1 to 999 stays part of the name.
std::vector<std::string> expand_gpus(const std::string& gpus);

// kBadSimSpec with the models there are, when one is unknown or ambiguous, or when there are more than 16. Spaces,
// dashes, underscores and the case of letters do not matter, and A10 is 1xA10; `catalogue` is the text of gpus.json,
// and one that cannot be read refuses nothing: the driver has the last word.
Result<void> check_gpus(const std::string& gpus, const std::string& catalogue);

}  // namespace kvram::cli
