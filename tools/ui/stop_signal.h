// SIGINT and SIGTERM as a wish to stop; SIGUSR1, too, which mpirun and batch systems can send ahead of time and which counts as SIGTERM.
#pragma once

namespace sinkgrad {

/// From now on the first of these only sets stop_signal(); the second one kills the program, which is safe: files appear by renaming.
/// The handler runs on a stack of its own: oneDNN's matrix products keep their operands' addresses in the stack pointer, and a signal frame
/// below it would overwrite the heap. To be called by the main thread, which the kernel prefers for signals.
void watch_stop_signals();

/// The number of the signal that came, or 0.
int stop_signal();

}  // namespace sinkgrad
