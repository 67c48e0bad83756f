# Sourced. Adds the folders with cuBLASLt, NCCL and cuDNN to LD_LIBRARY_PATH: those of PYTHON's NVIDIA packages (which
# PyTorch brings), then CUDA's. Folders in LD_LIBRARY_PATH already come first.
#   add_cuda_libraries PYTHON
add_cuda_libraries() {
  local found
  found=$("$1" -c 'import nvidia; print(*(f"{p}/{n}/lib" for p in nvidia.__path__ for n in
    ("cu13", "cudnn", "nccl")), sep=":")' 2>/dev/null)
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${found:+$found:}/usr/local/cuda/lib64:/usr/local/nvidia/lib64
  export PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
}
