// faults.h - what hardware stops a kernel's code for (signals), and the ends of fibers' stacks.
#pragma once
#include "block.h"

namespace emu {

// This OS thread runs fibers of the block from here on; its threads' stacks end in guard pages.
void enter_block(Block& block);
void leave_faults_to_others();  // ... and now it does not
void check_stack(Fiber& fiber);  // a fiber that returns: has it overflowed a stack without a guard page?

}  // namespace emu
