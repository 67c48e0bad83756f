// NVML with three GPUs: 0000:01:00.0 is healthy, 0000:02:00.0 has every fault, and 0000:03:00.0 is
// one about which the driver knows nothing. Return codes and values are those in nvml.h.

extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  static int gpus[4];
  const int number = bus_id[6] - '0';
  if (number < 1 || number > 3) return 6;  // NVML_ERROR_NOT_FOUND
  gpus[number] = number;
  *device = &gpus[number];
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  *millijoules = 1234;
  return *static_cast<int*>(device) == 3 ? 3 : 0;  // NVML_ERROR_NOT_SUPPORTED
}

int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  const int number = *static_cast<int*>(device);
  if (number == 3) return 3;
  // Corrected errors and lifetime errors are many, but no fault.
  *count = type == 1 && counter == 0 ? (number == 2 ? 5 : 0) : 1000;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  const int number = *static_cast<int*>(device);
  *reasons = number == 2 ? 0x44 : 0x05;  // power cap, with heat or idle
  return number == 3 ? 3 : 0;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* percent) {
  percent[0] = 85;  // nvmlUtilization_t: gpu, memory
  percent[1] = 40;
  return *static_cast<int*>(device) == 3 ? 3 : 0;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  const int number = *static_cast<int*>(device);
  if (number == 3 || link >= 18) return 2;  // NVML_ERROR_INVALID_ARGUMENT
  *active = number == 2 && link < 2 ? 0 : 1;
  return 0;
}
}
