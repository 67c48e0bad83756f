# Kernels and the code that chooses among them, relative to the source root. They compile as CUDA, or as C++ with the
# emulator, which has no cuDNN.
set(LLAMESH_CUDA_KERNELS
    src/ops/cuda/activation.cu
    src/ops/cuda/attention/attention.cu
    src/ops/cuda/attention/attention_choice.cpp
    src/ops/cuda/attention/attention_sinks.cu
    src/ops/cuda/attention/cached_attention.cu
    src/ops/cuda/attention/cudnn_attention_absent.cpp
    src/ops/cuda/attention/latent_heads.cu
    src/ops/cuda/attention/mma_attention_backward.cu
    src/ops/cuda/attention/mma_attention_forward.cu
    src/ops/cuda/attention/plain_attention.cu
    src/ops/cuda/attention/wgmma_attention_backward.cu
    src/ops/cuda/attention/wgmma_attention_forward.cu
    src/ops/cuda/bias.cu
    src/ops/cuda/block_codes.cu
    src/ops/cuda/cross_entropy.cu
    src/ops/cuda/elementwise.cu
    src/ops/cuda/embedding.cu
    src/ops/cuda/experts.cu
    src/ops/cuda/fp8.cu
    src/ops/cuda/grouped_bias.cu
    src/ops/cuda/grouped_linear.cu
    src/ops/cuda/mma_grouped_linear.cu
    src/ops/cuda/optimizers.cu
    src/ops/cuda/rope.cu
    src/ops/cuda/pair_loss.cu
    src/ops/cuda/row_norm.cu
    src/ops/cuda/row_norm_backward.cu
    src/ops/cuda/xielu.cu)
list(TRANSFORM LLAMESH_CUDA_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/)
