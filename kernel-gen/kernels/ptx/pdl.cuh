// Programmatic dependent launch (PTX ISA: griddepcontrol). Both do nothing in a launch without the attribute.
#pragma once

namespace kd::ptx {

// Waits until the kernel before this one has finished and its writes are visible.
__device__ __forceinline__ void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the kernel after this one start its prologue; it still waits for this one's writes.
__device__ __forceinline__ void grid_dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace kd::ptx
