// The part of available_cores (threads.h) that reads files.
#pragma once

namespace tilewise {

// Cores of time that the control groups of this process, v1 or v2, allow; infinity without a limit. `root` stands
// before every path: "" but in tests.
double cgroup_limit(const char* root);

}  // namespace tilewise
