#include "ops/cuda/attention/cudnn_graph.hpp"

// Omits the parts that need a JSON library.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <cmath>
#include <exception>
#include <unordered_map>
#include <vector>

// Only this file includes cudnn_frontend, which takes a minute to compile.

namespace llamesh::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Handle = std::shared_ptr<Tensor_attributes>;

/// Tensor ids, shared by a graph and its calls.
enum Uid : std::int64_t { q_ = 1, k_, v_, out_, statistics_, dout_, dq_, dk_, dv_ };

/// Throws with cuDNN's own text.
void check(fe::error_t status, const char* what) {
  if (status.is_bad())
    fail(ExitCode::internal_error, "{} failed in cuDNN: {}", what, status.get_message());
}

/// Factory for graph tensors in one problem: (B, heads, T, E or V), with a token's heads adjacent
/// in its row.
class Tensors {
 public:
  explicit Tensors(const CudnnProblem& problem) : p_(problem) {}

  Tensor_attributes q(Uid uid) const { return rows(uid, p_.heads, p_.head_dim, p_.q_stride); }
  Tensor_attributes k(Uid uid) const { return rows(uid, p_.kv_heads, p_.head_dim, p_.k_stride); }
  Tensor_attributes v(Uid uid) const { return rows(uid, p_.kv_heads, p_.value_dim, p_.v_stride); }
  Tensor_attributes out(Uid uid) const { return rows(uid, p_.heads, p_.value_dim, p_.out_stride); }
  Tensor_attributes statistics(Uid uid) const {
    Tensor_attributes t;
    t.set_uid(uid).set_data_type(fe::DataType_t::FLOAT);
    t.set_dim({p_.batch, p_.heads, p_.sequence, 1});
    t.set_stride({p_.heads * p_.sequence, p_.sequence, 1, 1});
    return t;
  }

 private:
  Tensor_attributes rows(Uid uid, std::int64_t heads, std::int64_t dims,
                         std::int64_t stride) const {
    Tensor_attributes t;
    t.set_uid(uid).set_data_type(fe::DataType_t::BFLOAT16);
    t.set_dim({p_.batch, heads, p_.sequence, dims});
    t.set_stride({p_.sequence * stride, dims, stride, 1});
    return t;
  }
  const CudnnProblem& p_;
};

/// Gives a graph output the layout described by `where`.
void put_out(const Handle& tensor, const Tensor_attributes& where) {
  tensor->set_output(true).set_uid(where.get_uid()).set_data_type(where.get_data_type());
  tensor->set_dim(where.get_dim()).set_stride(where.get_stride());
}

void set_types(Graph& graph) {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
}

/// Causal, and with a window only the keys with key + window > query, as the frontend counts it
/// (utils/attn_score_modifiers.h).
template <class Attributes>
void set_mask(Attributes& how, const CudnnProblem& problem) {
  how.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (problem.window > 0) how.set_diagonal_band_left_bound(static_cast<int>(problem.window));
}

void describe_forward(Graph& graph, const CudnnProblem& problem) {
  const Tensors make(problem);
  set_types(graph);
  fe::graph::SDPA_attributes how;
  how.set_name("attention").set_generate_stats(true).set_attn_scale(1.0F / problem.score_divisor);
  set_mask(how, problem);
  const auto [out, statistics] =
      graph.sdpa(graph.tensor(make.q(q_)), graph.tensor(make.k(k_)), graph.tensor(make.v(v_)), how);
  put_out(out, make.out(out_));
  put_out(statistics, make.statistics(statistics_));
}

void describe_backward(Graph& graph, const CudnnProblem& problem) {
  const Tensors make(problem);
  set_types(graph);
  fe::graph::SDPA_backward_attributes how;
  how.set_name("attention_backward").set_attn_scale(1.0F / problem.score_divisor);
  set_mask(how, problem);
  how.set_deterministic_algorithm(true);
  const auto [dq, dk, dv] = graph.sdpa_backward(
      graph.tensor(make.q(q_)), graph.tensor(make.k(k_)), graph.tensor(make.v(v_)),
      graph.tensor(make.out(out_)), graph.tensor(make.out(dout_)),
      graph.tensor(make.statistics(statistics_)), how);
  put_out(dq, make.q(dq_));
  put_out(dk, make.k(dk_));
  put_out(dv, make.v(dv_));
}

/// Lets cuDNN choose and plan a kernel, for the device behind `handle` or the one that `properties`
/// describe. Returns the scratch size that it needs.
std::int64_t plan(Graph& graph, cudnnHandle_t handle, const std::string& properties,
                  const char* what) {
  const std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A};
  if (handle == nullptr) {
    const auto device = std::make_shared<fe::DeviceProperties>();
    check(device->deserialize({properties.begin(), properties.end()}), "reading the properties");
    graph.set_device_properties(device);
    check(graph.build(modes), what);
  } else {
    check(graph.build(handle, modes), what);
  }
  std::int64_t bytes = 0;
  check(graph.get_workspace_size(bytes), what);
  return bytes;
}

}  // namespace

CudnnProblem::CudnnProblem(const AttentionCall& call)
    : batch(call.shape.batch),
      sequence(call.shape.sequence),
      heads(call.shape.heads),
      kv_heads(call.shape.kv_heads),
      head_dim(call.shape.head_dim),
      value_dim(call.shape.value_dim),
      window(call.shape.window < call.shape.sequence ? call.shape.window : 0),
      score_divisor(call.shape.score_divisor),
      q_stride(call.q.row_stride()),
      k_stride(call.k.row_stride()),
      v_stride(call.v.row_stride()),
      out_stride(call.out.row_stride()) {}

struct CudnnGraph::Graph : fe::graph::Graph {};

CudnnGraph::CudnnGraph(const CudnnProblem& problem, AttentionPass pass, cudnnHandle_t handle) {
  build(problem, pass, handle, "");
}

CudnnGraph::CudnnGraph(const CudnnProblem& problem, AttentionPass pass,
                       const std::string& properties) {
  build(problem, pass, nullptr, properties);
}

void CudnnGraph::build(const CudnnProblem& problem, AttentionPass pass, cudnnHandle_t handle,
                       const std::string& properties) {
  graph_ = std::make_unique<Graph>();
  try {
    if (pass == AttentionPass::forward) {
      describe_forward(*graph_, problem);
      scratch_bytes_ = plan(*graph_, handle, properties, "the graph of attention");
    } else {
      describe_backward(*graph_, problem);
      scratch_bytes_ = plan(*graph_, handle, properties, "the graph of attention's gradient");
    }
  } catch (const std::exception& error) {
    refusal_ = error.what();
  }
}

CudnnGraph::~CudnnGraph() = default;

void CudnnGraph::run(cudnnHandle_t handle, const AttentionCall& call, const AttentionGradients& g,
                     void* scratch) const {
  std::unordered_map<std::int64_t, void*> data{{q_, call.q.data()},
                                               {k_, call.k.data()},
                                               {v_, call.v.data()},
                                               {out_, call.out.data()},
                                               {statistics_, call.log_sum_exp.data()}};
  if (pass_of(g) == AttentionPass::backward)
    data.insert(
        {{dout_, g.dout.data()}, {dq_, g.dq.data()}, {dk_, g.dk.data()}, {dv_, g.dv.data()}});
  check(graph_->execute(handle, data, scratch), "attention");
}

}  // namespace llamesh::ops::cuda
