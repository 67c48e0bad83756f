# SPDX-License-Identifier: Apache-2.0
"""ReFrame tests for an installed llamesh: sanity, tokens/s, start time, save and load rates.

docs/packages.md says how to run them.
"""

import json
import pathlib
import statistics

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (parameter, performance_function, run_after, run_before,
                                   sanity_function, variable)

# The folder with inputs/: the repository's root, or share/llamesh where llamesh is installed.
ROOT = next(folder for folder in pathlib.Path(__file__).resolve().parents
            if (folder / 'inputs' / 'tiny.yaml').exists())


class Llamesh(rfm.RunOnlyRegressionTest):
    """Runs llamesh on whole nodes, in a folder with a link to inputs/."""

    num_nodes = parameter([1, 2])
    ranks_per_node = variable(int, value=2)
    num_cpus_per_task = 1
    valid_systems = ['*']
    valid_prog_environs = ['*']
    sourcesdir = None
    executable = 'llamesh'
    time_limit = '10m'
    prerun_cmds = [
        f'ln -sfn {ROOT}/inputs inputs',
        'export SLURM_PMIX_FENCE=ring',  # docs/cluster.md says why
        'export LLAMESH_LAUNCH_TIME=$(date +%s.%N)',
    ]

    @run_after('init')
    def place_ranks(self):
        self.num_tasks_per_node = self.ranks_per_node
        self.num_tasks = self.num_nodes * self.ranks_per_node


@rfm.simple_test
class TrainTest(Llamesh):
    """Trains from scratch.

    The default inputs take seconds on any machine: they find a broken installation and a slow
    start. For a machine's speed, set `inputs`, `steps` and no `final_loss`.
    """

    inputs = variable(str, value='inputs/tiny.yaml')
    steps = variable(int, value=100)
    final_loss = variable(float, type(None), value=2.980)
    reference = {
        'test-cluster:main': {
            'tokens_per_second': (100_000, -0.9, None, 'tokens/s'),
            'start_time': (2, None, 9, 's'),
        },
    }

    @run_after('init')
    def set_options(self):
        self.executable_opts = ['train', self.inputs, 'run.folder=run', f'train.steps={self.steps}']

    def metrics(self):
        path = pathlib.Path(self.stagedir, 'run', 'metrics.jsonl')
        return [json.loads(line) for line in path.read_text().splitlines()]

    @sanity_function
    def trains(self):
        losses = [record['loss'] for record in self.metrics() if 'seconds' in record]
        checks = [
            sn.assert_eq(len(losses), self.steps),
            sn.assert_lt(losses[-1], losses[0]),
            sn.assert_found(rf'saved run/checkpoints/step_0*{self.steps}\b', self.stderr),
        ]
        if self.final_loss is not None:
            checks.append(sn.assert_reference(losses[-1], self.final_loss, -0.01, 0.01))
        return sn.all(checks)

    @performance_function('tokens/s')
    def tokens_per_second(self):
        """Median over the steps after the first."""
        return statistics.median(record['tokens_per_second'] for record in self.metrics()[1:]
                                 if 'tokens_per_second' in record)

    @performance_function('s')
    def start_time(self):
        """From srun to the end of the first step."""
        startup = next(record for record in self.metrics() if record.get('event') == 'startup')
        return sum(startup['phases'].values())


@rfm.simple_test
class ResumeTest(Llamesh):
    """Continues a run in a second srun, from the checkpoint of the first one."""

    @run_after('init')
    def set_options(self):
        self.executable_opts = ['train', 'inputs/tiny.yaml', 'run.folder=run', 'train.steps=10']

    @run_before('run')
    def continue_run(self):
        launch = self.job.launcher.run_command(self.job)
        self.postrun_cmds = [f'{launch} llamesh train inputs/tiny.yaml run.folder=run train.steps=20',
                             f'{launch} llamesh verify run']

    @sanity_function
    def resumes(self):
        return sn.all([
            sn.assert_found(r'resumed after step 10\b', self.stderr),
            sn.assert_found(r'done: step 20 of 20', self.stderr),
        ])


@rfm.simple_test
class CheckpointTest(Llamesh):
    """Saves and loads `mib` MiB of state: `llamesh bench checkpoint`."""

    mib = variable(int, value=256)
    reference = {
        'test-cluster:main': {
            'save_rate': (0.5, -0.9, None, 'GB/s'),
            'load_rate': (0.5, -0.9, None, 'GB/s'),
        },
    }

    @run_after('init')
    def set_options(self):
        self.executable_opts = ['bench', 'checkpoint', f'--mib={self.mib}']

    @sanity_function
    def completes(self):
        return sn.assert_found(r'^asynchronous save: stalls', self.stdout)

    def rate(self, name):
        """GB/s in the table: name, median seconds, GB/s, ..."""
        return sn.extractsingle(rf'^{name} +[\d.]+ +([\d.]+) ', self.stdout, 1, float)

    @performance_function('GB/s')
    def save_rate(self):
        return self.rate(r'save \(early write-back\)')

    @performance_function('GB/s')
    def load_rate(self):
        return self.rate('load, from disk')
