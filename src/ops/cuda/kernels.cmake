# The kernels and what chooses among them, from the root of the sources. They compile as CUDA, and as C++ over the
# emulator, which knows no cuDNN.
set(LLAMESH_CUDA_KERNELS
    src/ops/cuda/attention.cu
    src/ops/cuda/attention_choice.cpp
    src/ops/cuda/cached_attention.cu
    src/ops/cuda/cross_entropy.cu
    src/ops/cuda/cudnn_attention_absent.cpp
    src/ops/cuda/elementwise.cu
    src/ops/cuda/embedding.cu
    src/ops/cuda/optimizers.cu
    src/ops/cuda/plain_attention_backward.cu
    src/ops/cuda/plain_attention_forward.cu
    src/ops/cuda/rms_norm.cu
    src/ops/cuda/rope.cu
    src/ops/cuda/swiglu.cu
    src/ops/cuda/tensor_attention_backward.cu
    src/ops/cuda/tensor_attention_forward.cu
    src/ops/cuda/warpgroup_attention_backward.cu
    src/ops/cuda/warpgroup_attention_forward.cu)
list(TRANSFORM LLAMESH_CUDA_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/)
