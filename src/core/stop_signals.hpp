#pragma once

namespace llamesh {

/// Installs handlers that record the signals which ask a program to end, so that a run can save and
/// stop: SIGTERM, SIGUSR2 (Slurm's --signal), SIGINT, SIGHUP and SIGPIPE. A second SIGINT kills: a
/// user at a terminal means it. Writing to a closed pipe fails with EPIPE. Called first in main,
/// since Slurm may signal in a job's first second. Clears what was recorded before.
void catch_stop_signals();

/// The first in the order above that was received, or 0. Any thread.
int received_stop_signal() noexcept;

}  // namespace llamesh
