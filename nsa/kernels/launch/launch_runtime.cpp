#include "nsa/kernels/launch/launch_runtime.hpp"

#include <cstdlib>
#include <string_view>

namespace nsa::kernels {

namespace {

// While another thread captures a graph for itself alone, what allocates is refused to all that do not say this.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudaKernelNodeParams node_of(const LaunchCall& call) {
  cudaKernelNodeParams node = {};
  node.func = const_cast<void*>(call.kernel);
  node.gridDim = call.ctas;
  node.blockDim = call.threads;
  node.sharedMemBytes = static_cast<unsigned>(call.bytes);
  node.kernelParams = const_cast<void**>(call.values.data());
  return node;
}

// As a launch with cudaLaunchAttributeProgrammaticStreamSerialization is captured.
cudaGraphEdgeData early_edge() {
  cudaGraphEdgeData edge = {};
  edge.from_port = cudaGraphKernelNodePortProgrammatic;
  edge.type = cudaGraphDependencyTypeProgrammatic;
  return edge;
}

bool wants_each_by_itself() {
  const char* const set = std::getenv("CUDA_LAUNCH_BLOCKING");
  const std::string_view blocking = set ? set : "";
  return !blocking.empty() && blocking != "0";
}

class CudaRuntime final : public LaunchRuntime {
 public:
  bool may_collect(cudaStream_t stream) override {
    static const bool never = wants_each_by_itself();
    if (never) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // Refused for the default stream while another one is captured, which a launch would break off: as without us.
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status == cudaStreamCaptureStatusNone;
    forget_error();
    return false;
  }
  int device() override {
    int number = -1;
    cudaGetDevice(&number);
    return number;
  }
  cudaError_t launch(const LaunchCall& call, cudaStream_t stream) override {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = call.ctas;
    config.blockDim = call.threads;
    config.dynamicSmemBytes = call.bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = call.early ? 1 : 0;
    return cudaLaunchKernelExC(&config, call.kernel, const_cast<void**>(call.values.data()));
  }
  cudaError_t make(const Chain& chain, ChainGraph& made) override {
    const BesideCaptures relaxed;
    cudaError_t error = cudaGraphCreate(&made.graph, 0);
    for (std::size_t i = 0; i < chain.size() && error == cudaSuccess; ++i) {
      const LaunchCall call = chain[i];
      const cudaKernelNodeParams parameters = node_of(call);
      cudaGraphNode_t node = nullptr;
      error = cudaGraphAddKernelNode(&node, made.graph, nullptr, 0, &parameters);
      if (error == cudaSuccess && i > 0) {
        const cudaGraphEdgeData edge = call.early ? early_edge() : cudaGraphEdgeData{};
        error = cudaGraphAddDependencies(made.graph, &made.nodes.back(), &node, &edge, 1);
      }
      made.nodes.push_back(node);
    }
    return error == cudaSuccess ? cudaGraphInstantiate(&made.executable, made.graph, 0) : error;
  }
  cudaError_t set(const ChainGraph& graph, std::size_t node, const LaunchCall& call) override {
    const cudaKernelNodeParams parameters = node_of(call);
    return cudaGraphExecKernelNodeSetParams(graph.executable, graph.nodes[node], &parameters);
  }
  cudaError_t start(const ChainGraph& graph, cudaStream_t stream) override {
    return cudaGraphLaunch(graph.executable, stream);
  }
  void destroy(ChainGraph& graph) override {  // one that runs is freed by the runtime when it has ended
    if (graph.executable) cudaGraphExecDestroy(graph.executable);
    if (graph.graph) cudaGraphDestroy(graph.graph);
    graph = {};
  }
  void forget_error() override { static_cast<void>(cudaGetLastError()); }
  const char* describe(cudaError_t error) override { return cudaGetErrorString(error); }
};

}  // namespace

LaunchRuntime& launch_runtime() {
  static CudaRuntime* const runtime = new CudaRuntime;  // threads that end after main() still ask for it
  return *runtime;
}

}  // namespace nsa::kernels
