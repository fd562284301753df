// step.cuh - what changes from step to step, in device memory: the arguments of a launch never change, so a graph is
// built once and its nodes are never updated.
#pragma once
#include "device.cuh"

// Of the step that runs; a bucket's grid may be larger. table_stride: entries between two sequences' block tables.
struct Counts {
  int tokens, seqs, rows, table_stride;
};
