# SPDX-License-Identifier: Apache-2.0
"""Spack package for llamesh. docs/packages.md says how to use it."""

import os

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *

# The checkout that contains this file.
checkout = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), *[os.pardir] * 6))


class Llamesh(CMakePackage, CudaPackage):
    """Trains Llama-class models over an MPI device mesh, on CPUs and GPUs."""

    git = "file://" + checkout

    license("Apache-2.0")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")

    # Lower bounds are the versions in Debian 12, with which CI builds.
    depends_on("mpi")
    depends_on("hdf5@1.10.8:1 +mpi")
    depends_on("onednn@2.6: cpu_runtime=omp")
    depends_on("fmt@9.1:")
    depends_on("spdlog@1.10:")
    depends_on("yaml-cpp@0.7:")
    depends_on("cli11@2.1:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("sentencepiece@0.1.97:")
    depends_on("pcre2@10.42: +jit")
    depends_on("utf8proc@2.8:")
    depends_on("protozero@1.7:")
    depends_on("isa-l@2.30:")
    depends_on("py-jinja2@3.1:", type="run")
    depends_on("googletest@1.12:", when="+tests")

    with when("+cuda"):
        depends_on("cuda@12:")
        depends_on("nccl@2.27:")
        conflicts("cuda_arch=none", msg="set cuda_arch, for example cuda_arch=80,90a")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"nccl cuda_arch={arch}", when=f"cuda_arch={arch}")
            if int(arch.rstrip("af")) < 80:
                conflicts(f"cuda_arch={arch}", msg="llamesh needs Ampere (80) or later")

    conflicts("%gcc@:11", msg="llamesh is C++20 and tested with GCC 12")
    conflicts("%clang@:15", msg="llamesh is C++20 and tested with Clang 16")

    def cmake_args(self):
        args = [
            self.define_from_variant("LLAMESH_CUDA", "cuda"),
            self.define_from_variant("LLAMESH_TESTS", "tests"),
            # Spack's compiler wrapper adds the flags for the spec's target.
            self.define("LLAMESH_ARCH", ""),
            # Spack's own modules load the dependencies.
            self.define("LLAMESH_MODULE_DEPENDENCIES", ""),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.cuda_architectures()))
            args.append(self.define("NCCL_INCLUDE_DIR", self.spec["nccl"].prefix.include))
        return args

    def cuda_architectures(self):
        """Code for each architecture, as 80-real, since PTX for 90a runs on nothing else."""
        return [f"{arch}-real" for arch in self.spec.variants["cuda_arch"].value]
