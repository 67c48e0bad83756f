# SPDX-License-Identifier: Apache-2.0
"""ReFrame's view of the Slurm test cluster (tests/cluster/cluster.sh). Sites use their own."""

site_configuration = {
    'systems': [{
        'name': 'test-cluster',
        'descr': 'a Slurm with several nodes in namespaces on one machine',
        'hostnames': ['head'],
        'partitions': [{
            'name': 'main',
            'scheduler': 'squeue',  # this Slurm has no accounting
            'launcher': 'srun',
            'env_vars': [['SLURM_MPI_TYPE', 'pmix']],
            'environs': ['builtin'],
            'max_jobs': 1,
        }],
    }],
}
