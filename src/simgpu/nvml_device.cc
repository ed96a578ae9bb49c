// NVML: what a device is and how it does. Power, temperature and clocks are plausible and constant for a given load.
#include <array>
#include <cstdio>
#include <cstring>

#include "simgpu/gpu_clock.h"
#include "simgpu/nvml_state.h"

using namespace kvram::simgpu;  // NOLINT(google-build-using-namespace): C entry points

namespace {

unsigned busy_percent(const View& view) { return clock_utilisation(view.gpu).gpu_percent; }

unsigned power_mw(const View& view) {
  unsigned idle = static_cast<unsigned>(view.info().idle_power_w) * 1000;
  unsigned limit = static_cast<unsigned>(view.info().power_limit_w) * 1000;
  return idle + (limit - idle) * 6 / 10 * busy_percent(view) / 100;
}

unsigned clock_mhz(const View& view, nvmlClockType_t type) {
  int mhz = type == NVML_CLOCK_MEM ? view.info().memory_clock_mhz : view.info().sm_clock_mhz;
  return static_cast<unsigned>(type == NVML_CLOCK_VIDEO ? mhz * 9 / 10 : mhz);
}

nvmlReturn_t give_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned* out, const char* call) {
  if (type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return give(device, out, [&](const View& view) { return clock_mhz(view, type); }, call);
}

nvmlReturn_t give_pci(nvmlDevice_t device, nvmlPciInfo_t* out, bool subsystem, const char* call) {
  return with_device(
      device,
      [&](const View& view) {
        if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        nvmlPciInfo_t pci{};
        pci.bus = static_cast<unsigned>(view.info().pci_bus);
        pci.pciDeviceId = 0x223610deU;  // NVIDIA's vendor number in the low half
        pci.pciSubSystemId = subsystem ? 0x148210deU : 0;
        std::snprintf(pci.busIdLegacy, sizeof pci.busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, 0, pci.bus, 0);
        std::snprintf(pci.busId, sizeof pci.busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0, pci.bus, 0);
        *out = pci;
        return NVML_SUCCESS;
      },
      call);
}

nvmlReturn_t give_state(nvmlDevice_t device, nvmlEnableState_t* out, nvmlEnableState_t state, const char* call) {
  return give(device, out, [&](const View&) { return state; }, call);
}

}  // namespace

KV_NVML_EXPORT nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return with_device(device, [&](const View& view) { return put_text(view.info().name, name, length); });
}
KV_NVML_EXPORT nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return with_device(device, [&](const View& view) { return put_text(uuid_text(view.info().uuid), uuid, length); });
}
KV_NVML_EXPORT nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  return give(device, index, [](const View& view) { return view.gpu; });
}
KV_NVML_EXPORT nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  return give(device, minor, [](const View& view) { return view.gpu; });
}
KV_NVML_EXPORT nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int* id) {
  return give(device, id, [](const View& view) { return view.info().pci_bus << 8; });
}
KV_NVML_EXPORT nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* out) {
  return give(device, out, [](const View&) { return 0; });
}
KV_NVML_EXPORT nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char* out, unsigned int length) {
  return with_device(device, [&](const View&) { return put_text("94.02.71.00.01", out, length); });
}
KV_NVML_EXPORT nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return give(device, brand, [](const View& view) {
    const char* name = view.info().name;
    if (std::strstr(name, "GeForce") != nullptr) return NVML_BRAND_GEFORCE;
    if (std::strstr(name, "RTX") != nullptr) return NVML_BRAND_NVIDIA_RTX;
    return NVML_BRAND_NVIDIA;
  });
}
KV_NVML_EXPORT nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* out) {
  return give(device, out, [](const View& view) -> unsigned {
    int capability = view.info().cc_major * 10 + view.info().cc_minor;
    if (capability == 75) return NVML_DEVICE_ARCH_TURING;
    if (capability == 89) return NVML_DEVICE_ARCH_ADA;
    if (capability >= 80 && capability < 89) return NVML_DEVICE_ARCH_AMPERE;
    if (capability == 90) return NVML_DEVICE_ARCH_HOPPER;
    return capability >= 100 ? NVML_DEVICE_ARCH_BLACKWELL : NVML_DEVICE_ARCH_UNKNOWN;
  });
}
KV_NVML_EXPORT nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return with_device(device, [&](const View& view) {
    if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *major = view.info().cc_major;
    *minor = view.info().cc_minor;
    return NVML_SUCCESS;
  });
}
KV_NVML_EXPORT nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int* cores) {
  return give(device, cores, [](const View& view) {
    bool wide = view.info().cc_major * 10 + view.info().cc_minor > 80;  // 128 lanes per SM after A100's 64
    return view.info().sms * (wide ? 128 : 64);
  });
}
KV_NVML_EXPORT nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* bits) {
  return give(device, bits, [](const View& view) { return view.info().memory_bus_bits; });
}

KV_NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci, true, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci, true, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return give_pci(device, pci, true, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t plain{};
  nvmlReturn_t r = give_pci(device, &plain, true, __func__);
  if (r != NVML_SUCCESS) return r;
  pci->domain = plain.domain;
  pci->bus = plain.bus;
  pci->device = plain.device;
  pci->pciDeviceId = plain.pciDeviceId;
  pci->pciSubSystemId = plain.pciSubSystemId;
  pci->baseClass = 0x03;
  pci->subClass = 0x02;
  std::memcpy(pci->busId, plain.busId, sizeof pci->busId);
  return NVML_SUCCESS;
}
KV_NVML_EXPORT nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int* out) {
  return give(device, out, [](const View& view) { return view.info().cc_major >= 9 ? 5 : 4; });
}
KV_NVML_EXPORT nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int* out) {
  return nvmlDeviceGetMaxPcieLinkGeneration(device, out);
}
KV_NVML_EXPORT nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int* out) {
  return give(device, out, [](const View&) { return 16; });
}
KV_NVML_EXPORT nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int* out) {
  return nvmlDeviceGetMaxPcieLinkWidth(device, out);
}

KV_NVML_EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* out) {
  return give(device, out, [](const View& view) {
    unsigned busy = busy_percent(view);
    return nvmlUtilization_t{busy, busy / 2};
  });
}
KV_NVML_EXPORT nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int* percent, unsigned int* period_us) {
  if (period_us == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *period_us = 167000;
  return give(device, percent, [](const View&) { return 0; });
}
KV_NVML_EXPORT nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int* percent, unsigned int* period_us) {
  return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

KV_NVML_EXPORT nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* mw) { return give(device, mw, power_mw); }
KV_NVML_EXPORT nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int* mw) {
  return give(device, mw, [](const View& view) { return view.info().power_limit_w * 1000; });
}
KV_NVML_EXPORT nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int* mw) {
  return nvmlDeviceGetPowerManagementLimit(device, mw);
}
KV_NVML_EXPORT nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* mw) {
  return nvmlDeviceGetPowerManagementLimit(device, mw);
}
KV_NVML_EXPORT nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int* low,
                                                            unsigned int* high) {
  if (low == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t r = nvmlDeviceGetPowerManagementLimit(device, high);
  if (r == NVML_SUCCESS) *low = *high / 2;
  return r;
}
KV_NVML_EXPORT nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long* mj) {
  // Idle draw since the machine booted, and the busy part on top.
  return give(device, mj, [](const View& view) {
    auto idle = static_cast<unsigned long long>(view.info().idle_power_w);
    auto span = static_cast<unsigned long long>(view.info().power_limit_w) - idle;
    return real_now_ns() / 1000000 * idle + clock_utilisation(view.gpu).busy_ns / 1000000 * (span * 6 / 10);
  });
}
KV_NVML_EXPORT nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t* out) {
  return give_state(device, out, NVML_FEATURE_ENABLED, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* out) {
  return give(device, out, [](const View&) { return NVML_PSTATE_0; });
}
KV_NVML_EXPORT nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t* out) {
  return nvmlDeviceGetPerformanceState(device, out);
}

KV_NVML_EXPORT nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return give(device, celsius, [](const View& view) { return 34 + busy_percent(view) * 3 / 10; });
}
KV_NVML_EXPORT nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return give(device, &temperature->temperature, [](const View& view) { return 34 + busy_percent(view) * 3 / 10; });
}
KV_NVML_EXPORT nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which,
                                                 unsigned int* celsius) {
  if (which >= NVML_TEMPERATURE_THRESHOLD_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (which > NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return NVML_ERROR_NOT_SUPPORTED;
  constexpr std::array<unsigned, 4> kCelsius = {95, 92, 95, 85};
  return give(device, celsius, [&](const View&) { return kCelsius[static_cast<size_t>(which)]; });
}

KV_NVML_EXPORT nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz) {
  return give_clock(device, type, mhz, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz) {
  return give_clock(device, type, mhz, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz) {
  return give_clock(device, type, mhz, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz) {
  return give_clock(device, type, mhz, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t which, unsigned int* mhz) {
  if (which >= NVML_CLOCK_ID_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return give_clock(device, type, mhz, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return give(device, reasons, [](const View& view) {
    return busy_percent(view) == 0 ? nvmlClocksEventReasonGpuIdle : nvmlClocksEventReasonNone;
  });
}
KV_NVML_EXPORT nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

KV_NVML_EXPORT nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return give(device, mode, [](const View&) { return NVML_COMPUTEMODE_DEFAULT; });
}
KV_NVML_EXPORT nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  return with_device(
      device, [&](const View&) { return mode == NVML_COMPUTEMODE_DEFAULT ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED; });
}
KV_NVML_EXPORT nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* out) {
  return give_state(device, out, NVML_FEATURE_ENABLED, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* out) {
  return give_state(device, out, NVML_FEATURE_DISABLED, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* out) {
  return give_state(device, out, NVML_FEATURE_DISABLED, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t* out) {
  return give_state(device, out, NVML_FEATURE_DISABLED, __func__);
}
KV_NVML_EXPORT nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* out) {
  return give(device, out, [](const View&) { return NVML_GPU_VIRTUALIZATION_MODE_NONE; });
}
// No GPU of the simulation can be split into instances.
KV_NVML_EXPORT nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return give(device, count, [](const View&) { return 0; });
}
KV_NVML_EXPORT nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig) {
  return give(device, is_mig, [](const View&) { return 0; });
}
