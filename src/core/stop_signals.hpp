#pragma once

#include <cstdint>

namespace llamesh {

/// Installs handlers that record the signals which ask a program to end, so that a run can save and
/// stop: SIGTERM, SIGUSR2 (Slurm's --signal), SIGINT, SIGHUP and SIGPIPE. A second SIGINT kills: a
/// user at a terminal means it. Writing to a closed pipe fails with EPIPE. Called first in main,
/// since Slurm may signal in a job's first second. Clears what was recorded before.
void catch_stop_signals();

/// From now on the handlers also set bit n of `*bits` for signal n, which the kernel preserves when
/// the process is killed if it is in shared memory; those received so far are set at once. Null:
/// nowhere.
void record_stop_signals_in(std::uint32_t* bits) noexcept;

/// The first in the order above that was received, or 0. Any thread.
int received_stop_signal() noexcept;

}  // namespace llamesh
