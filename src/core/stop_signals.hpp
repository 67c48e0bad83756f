#pragma once

namespace llamesh {

/// From now on the signals that ask a program to end do not kill it but are noted, for a run to
/// save and stop: SIGTERM, SIGUSR2 (Slurm's --signal), SIGINT, SIGHUP and SIGPIPE. A second SIGINT
/// kills, since a person at a terminal means it. Writing to a closed pipe fails with EPIPE. Called
/// first in main, since Slurm may signal in a job's first second. Forgets what was noted before.
void note_stop_signals();

/// The first of the order above that has come, or 0. Any thread.
int noted_stop_signal() noexcept;

}  // namespace llamesh
