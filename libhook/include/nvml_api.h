/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of NVML's binary interface that gpushare's libraries use: what the interposer library
 * shows a container and what the simulator implements. Named as exported. Structures that begin
 * with a version contain sizeof | version << 24, which the function that fills them checks.
 */
#ifndef GPUSHARE_NVML_API_H
#define GPUSHARE_NVML_API_H

#include <stddef.h>
#include <stdint.h>

typedef enum nvmlReturn_t {
#define NVML_RESULT(name, value, since, words) name = (value),
#include "../table/nvml_result.inc"
#undef NVML_RESULT
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlUnit_st *nvmlUnit_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

#define NVML_STRUCTURE_VERSION(type, version) ((unsigned int)(sizeof(type) | (version) << 24))

typedef struct nvmlEventData_t {
	nvmlDevice_t device;
	unsigned long long eventType;
	unsigned long long eventData;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlEventData_t;

typedef struct nvmlMemory_t {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_t {
	unsigned int version;
	unsigned long long total;
	unsigned long long reserved;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_v2_t;

typedef struct nvmlBAR1Memory_t {
	unsigned long long bar1Total;
	unsigned long long bar1Free;
	unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef struct nvmlUtilization_t {
	unsigned int gpu;
	unsigned int memory;
} nvmlUtilization_t;

typedef struct nvmlPciInfo_t {
	char busIdLegacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
	unsigned int pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

/* What nvmlDeviceGetPciInfo filled before version 2. */
typedef struct nvmlPciInfo_v1_t {
	char busIdLegacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
} nvmlPciInfo_v1_t;

typedef struct nvmlProcessInfo_v1_t {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

/* Of nvmlDeviceGet*RunningProcesses_v2 and _v3. */
typedef struct nvmlProcessInfo_v2_t {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct nvmlProcessDetail_v1_t {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct nvmlProcessDetailList_v1_t {
	unsigned int version;
	unsigned int mode; /* 0 compute, 1 graphics, 2 MPS */
	unsigned int numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct nvmlProcessUtilizationSample_t {
	unsigned int pid;
	unsigned long long timeStamp; /* microseconds, of the wall clock */
	unsigned int smUtil;
	unsigned int memUtil;
	unsigned int encUtil;
	unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct nvmlProcessUtilizationInfo_v1_t {
	unsigned long long timeStamp;
	unsigned int pid;
	unsigned int smUtil;
	unsigned int memUtil;
	unsigned int encUtil;
	unsigned int decUtil;
	unsigned int jpgUtil;
	unsigned int ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct nvmlProcessesUtilizationInfo_v1_t {
	unsigned int version;
	unsigned int processSamplesCount;
	unsigned long long lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef union nvmlValue_t {
	double dVal;
	unsigned int uiVal;
	unsigned long long ullVal;
} nvmlValue_t;

typedef struct nvmlSample_t {
	unsigned long long timeStamp;
	nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct nvmlFieldValue_t {
	unsigned int fieldId;
	unsigned int scopeId;
	long long timestamp;
	long long latencyUsec;
	int valueType;
	nvmlReturn_t nvmlReturn;
	nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct nvmlDeviceAttributes_t {
	unsigned int multiprocessorCount;
	unsigned int sharedCopyEngineCount;
	unsigned int sharedDecoderCount;
	unsigned int sharedEncoderCount;
	unsigned int sharedJpegCount;
	unsigned int sharedOfaCount;
	unsigned int gpuInstanceSliceCount;
	unsigned int computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* For the processes in the cgroup whose directory is `nameSpace`; since driver 615. */
typedef struct nvmlSetMemoryLimits_v1_t {
	const char *nameSpace;
	unsigned long long softLimit;
	unsigned long long hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct nvmlGetMemoryLimits_v1_t {
	const char *nameSpace;
	unsigned long long softLimit;
	unsigned long long hardLimit;
	unsigned long long currentUsed;
} nvmlGetMemoryLimits_v1_t;

#define NVML_DEVICE_MEMORY_LIMIT_MAX UINT64_MAX /* no limit, with a soft limit of 0 */

typedef struct nvmlAccountingStats_t {
	unsigned int gpuUtilization;
	unsigned int memoryUtilization;
	unsigned long long maxMemoryUsage;
	unsigned long long time;
	unsigned long long startTime;
	unsigned int isRunning;
	unsigned int reserved[5];
} nvmlAccountingStats_t;

typedef struct nvmlAccountingStats_v2_t {
	unsigned int pid; /* asked for */
	unsigned int isRunning;
	unsigned int gpuUtilization;
	unsigned int memoryUtilization;
	unsigned long long maxMemoryUsage;
	unsigned int sampleCount;
	unsigned long long sumGpuUtil;
	unsigned long long sumFbUtil;
	unsigned long long time;
	unsigned long long startTime;
} nvmlAccountingStats_v2_t;

enum { NVML_UTILIZATION_GPU = 0, NVML_UTILIZATION_MEMORY = 1, NVML_UTILIZATIONS = 8 };

typedef struct nvmlGpuDynamicPstatesInfo_t {
	unsigned int flags;
	struct {
		unsigned int bIsPresent;
		unsigned int percentage;
		unsigned int incThreshold;
		unsigned int decThreshold;
	} utilization[NVML_UTILIZATIONS];
} nvmlGpuDynamicPstatesInfo_t;

typedef struct nvmlEncoderSessionInfo_t nvmlEncoderSessionInfo_t;
typedef struct nvmlFBCSessionInfo_t nvmlFBCSessionInfo_t;

typedef struct nvmlTemperature_v1_t {
	unsigned int version;
	int sensorType;
	int temperature;
} nvmlTemperature_v1_t;

typedef struct nvmlUUID_v1_t {
	unsigned int version;
	unsigned int type; /* 1 ASCII, 2 binary */
	union {
		char str[41];
		unsigned char bytes[16];
	} value;
} nvmlUUID_v1_t;

enum {
	NVML_VALUE_TYPE_UNSIGNED_INT = 1,
	NVML_GPU_UTILIZATION_SAMPLES = 1,
	NVML_MEMORY_UTILIZATION_SAMPLES = 2,
	NVML_CLOCK_GRAPHICS = 0,
	NVML_CLOCK_SM = 1,
	NVML_CLOCK_MEM = 2,
	NVML_CLOCK_VIDEO = 3,
	NVML_FEATURE_DISABLED = 0,
	NVML_FEATURE_ENABLED = 1,
};

#pragma GCC visibility push(default)

/* the library */
nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned int flags);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);

/* which device */
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(
	nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices);
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(
	nvmlDevice_t device, nvmlDevice_t other, int *level);
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, int kind, int *status);
nvmlReturn_t nvmlDeviceGetMemoryAffinity(
	nvmlDevice_t device, unsigned int size, unsigned long *nodes, unsigned int scope);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active);
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, int *type);
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(
	nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlSystemGetTopologyGpuSet(
	unsigned int cpu, unsigned int *count, nvmlDevice_t *devices);
nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(
	nvmlDevice_t device, unsigned int index, nvmlDevice_t *partition);
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
	nvmlDevice_t partition, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t partition, unsigned int *id);
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t partition, unsigned int *id);
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, int *brand);
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length);
nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board);
nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *several);
nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same);
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length);
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v1_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores);
nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits);
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);

/* memory, utilization, processes */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(
	nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(
	nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info);
nvmlReturn_t nvmlDeviceGetEncoderUtilization(
	nvmlDevice_t device, unsigned int *percent, unsigned int *period_us);
nvmlReturn_t nvmlDeviceGetDecoderUtilization(
	nvmlDevice_t device, unsigned int *percent, unsigned int *period_us);
nvmlReturn_t nvmlDeviceGetJpgUtilization(
	nvmlDevice_t device, unsigned int *percent, unsigned int *period_us);
nvmlReturn_t nvmlDeviceGetOfaUtilization(
	nvmlDevice_t device, unsigned int *percent, unsigned int *period_us);
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen,
	int *value_type, unsigned int *count, nvmlSample_t *samples);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(
	nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(
	nvmlDevice_t device, nvmlProcessDetailList_v1_t *list);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
	nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long last_seen);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info);
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetAccountingStats(
	nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats);
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats);
nvmlReturn_t nvmlDeviceGetAccountingPids(
	nvmlDevice_t device, unsigned int *count, unsigned int *pids);
nvmlReturn_t nvmlDeviceGetEncoderSessions(
	nvmlDevice_t device, unsigned int *count, nvmlEncoderSessionInfo_t *sessions);
nvmlReturn_t nvmlDeviceGetFBCSessions(
	nvmlDevice_t device, unsigned int *count, nvmlFBCSessionInfo_t *sessions);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);

/* modes and state */
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, int *active);
nvmlReturn_t nvmlDeviceGetMigMode(
	nvmlDevice_t device, unsigned int *current, unsigned int *pending);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig);
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(
	nvmlDevice_t device, int error_type, int counter_type, unsigned long long *count);
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
	unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed);
nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state);
nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, int *state);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature);
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(
	nvmlDevice_t device, int threshold, unsigned int *celsius);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, int *mode);
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(
	nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(
	nvmlDevice_t device, unsigned int *least, unsigned int *most);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts);
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(
	nvmlDevice_t device, unsigned long long *millijoules);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int clock, unsigned int *mhz);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int clock, unsigned int *mhz);
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, int clock, unsigned int *mhz);
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(
	nvmlDevice_t device, int clock, unsigned int *mhz);
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, int clock, int id, unsigned int *mhz);
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(
	nvmlDevice_t device, unsigned long long *reasons);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(
	nvmlDevice_t device, unsigned long long *reasons);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes);
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *kib);
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count);

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
nvmlReturn_t nvmlDeviceRegisterEvents(
	nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms);
nvmlReturn_t nvmlEventSetWait_v2(
	nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms);

#pragma GCC visibility pop

_Static_assert(sizeof(nvmlMemory_t) == 24 && sizeof(nvmlMemory_v2_t) == 40, "ABI");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_v2_t) == 24, "ABI");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "ABI");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "ABI");
_Static_assert(sizeof(nvmlAccountingStats_v2_t) == 64, "ABI");
_Static_assert(sizeof(nvmlGpuDynamicPstatesInfo_t) == 132, "ABI");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32 && sizeof(nvmlFieldValue_t) == 40, "ABI");

#endif
