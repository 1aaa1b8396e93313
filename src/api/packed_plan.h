// A Plan as the plain bytes of tw_plan, and what a problem may differ in from the one that was planned.
#pragma once

#include "core/plan.h"

namespace tilewise::api {

void pack(const Problem& problem, const Plan& plan, tw_plan& packed);

// The plan for `problem`, if it is one that `packed` was made for or a smaller one; otherwise TW_PLAN_MISMATCH, with a
// message that names what differs. No bytes in `packed` can make it crash.
Status unpack(const tw_plan& packed, const Problem& problem, Plan& plan);

// Its kernel; null if no plan of this library lies in `packed`.
const Kernel* kernel_of(const tw_plan& packed);

}  // namespace tilewise::api
