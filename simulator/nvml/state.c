/* SPDX-License-Identifier: Apache-2.0
 *
 * A card's load, temperature and clocks. Temperature and power follow from how busy it was in the
 * last second; engines other than the one that runs kernels are as busy as a test says, and modes
 * have their defaults.
 */
#include "library.h"

#include "engine.h"

#define PERIOD_MICROSECONDS 1000000

static unsigned int busy(struct sim_card *card)
{
	uint64_t now = card_look(card);
	unsigned int percent = busy_percent(&card->busy, now);

	card_unlock(card);
	return percent;
}

static unsigned int by_load(struct sim_card *card, unsigned int idle, unsigned int full)
{
	return idle + (full - idle) * busy(card) / 100;
}

/* Memory bandwidth use is not simulated. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(utilization, NVML_ERROR_INVALID_ARGUMENT);
	*utilization = (nvmlUtilization_t){.gpu = busy(card)};
	return NVML_SUCCESS;
}

#define ENGINE(name, busy_percent)                                                                 \
	nvmlReturn_t name(nvmlDevice_t handle, unsigned int *percent, unsigned int *period_us)     \
	{                                                                                          \
		REQUIRE_CARD(card, handle);                                                        \
		REQUIRE(percent && period_us, NVML_ERROR_INVALID_ARGUMENT);                        \
		*percent = (busy_percent);                                                         \
		*period_us = PERIOD_MICROSECONDS;                                                  \
		return NVML_SUCCESS;                                                               \
	}

ENGINE(nvmlDeviceGetEncoderUtilization, device->faults[card_index(card)].encoder_percent)
ENGINE(nvmlDeviceGetDecoderUtilization, device->faults[card_index(card)].decoder_percent)
ENGINE(nvmlDeviceGetJpgUtilization, 0)
ENGINE(nvmlDeviceGetOfaUtilization, 0)

#define NUMBER(name, type, value)                                                                  \
	nvmlReturn_t name(nvmlDevice_t handle, type *number)                                       \
	{                                                                                          \
		REQUIRE_CARD(card, handle);                                                        \
		REQUIRE(number, NVML_ERROR_INVALID_ARGUMENT);                                      \
		*number = (type)(value);                                                           \
		return NVML_SUCCESS;                                                               \
	}

NUMBER(nvmlDeviceGetComputeMode, int, device->faults[card_index(card)].compute_mode)
NUMBER(nvmlDeviceGetPersistenceMode, int,
	device->faults[card_index(card)].persistence_off ? NVML_FEATURE_DISABLED
							 : NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetDisplayMode, int, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetDisplayActive, int, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetPowerManagementMode, int, NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetAccountingMode, int, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetVirtualizationMode, int, 0) /* none */
NUMBER(nvmlDeviceGetPerformanceState, int, 0)	/* P0 */
NUMBER(nvmlDeviceGetPowerState, int, 0)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, card_profile(card)->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, card_profile(card)->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, card_profile(card)->pcie_lanes)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, card_profile(card)->pcie_lanes)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, card_profile(card)->power_limit_milliwatts)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int,
	card_profile(card)->power_limit_milliwatts)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, card_profile(card)->power_limit_milliwatts)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int,
	by_load(card, card_profile(card)->power_idle_milliwatts,
		card_profile(card)->power_limit_milliwatts))

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(
	nvmlDevice_t handle, unsigned int *lowest, unsigned int *highest)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(lowest && highest, NVML_ERROR_INVALID_ARGUMENT);
	*lowest = *highest = card_profile(card)->power_limit_milliwatts; /* it cannot be set */
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, int *current, int *pending)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(current && pending, NVML_ERROR_INVALID_ARGUMENT);
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(
	nvmlDevice_t handle, int error_type, int counter_type, unsigned long long *count)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(count && error_type >= 0 && error_type <= 1 && counter_type >= 0 &&
			counter_type <= 1,
		NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	return NVML_SUCCESS;
}

static unsigned int temperature(struct sim_card *card)
{
	return by_load(card, card_profile(card)->temperature_idle_celsius,
		card_profile(card)->temperature_busy_celsius);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned int *celsius)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(celsius && sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
	*celsius = temperature(card);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *reading)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(reading && reading->sensorType == 0, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(reading->version == NVML_STRUCTURE_VERSION(nvmlTemperature_v1_t, 1),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	reading->temperature = (int)temperature(card);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(
	nvmlDevice_t handle, int threshold, unsigned int *celsius)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(celsius, NVML_ERROR_INVALID_ARGUMENT);
	switch (threshold) {
	case 0:
		*celsius = card_profile(card)->temperature_shutdown_celsius;
		return NVML_SUCCESS;
	case 1:
		*celsius = card_profile(card)->temperature_slowdown_celsius;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

/* Clocks neither rise nor fall. */
static nvmlReturn_t clock_of(nvmlDevice_t handle, int clock, unsigned int *mhz)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(mhz, NVML_ERROR_INVALID_ARGUMENT);
	switch (clock) {
	case NVML_CLOCK_GRAPHICS:
	case NVML_CLOCK_SM:
	case NVML_CLOCK_VIDEO:
		*mhz = card_profile(card)->clock_sm_mhz;
		return NVML_SUCCESS;
	case NVML_CLOCK_MEM:
		*mhz = card_profile(card)->clock_memory_mhz;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
}

#define CLOCK(name)                                                                                \
	nvmlReturn_t name(nvmlDevice_t handle, int clock, unsigned int *mhz)                       \
	{                                                                                          \
		return clock_of(handle, clock, mhz);                                               \
	}

CLOCK(nvmlDeviceGetClockInfo)
CLOCK(nvmlDeviceGetMaxClockInfo)
CLOCK(nvmlDeviceGetApplicationsClock)
CLOCK(nvmlDeviceGetDefaultApplicationsClock)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, int clock, int id, unsigned int *mhz)
{
	REQUIRE(id >= 0 && id <= 3, NVML_ERROR_INVALID_ARGUMENT);
	return clock_of(handle, clock, mhz);
}

#define FIELD_MEMORY_TEMPERATURE 82 /* NVML_FI_DEV_MEMORY_TEMP */
#define VALUE_UNSIGNED_INT 1	    /* NVML_VALUE_TYPE_UNSIGNED_INT */

/* The memory is as warm as the rest. Every other field reports for itself that it is not
 * simulated. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
	for (int i = 0; i < count; i++) {
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (values[i].fieldId == FIELD_MEMORY_TEMPERATURE) {
			values[i].nvmlReturn = NVML_SUCCESS;
			values[i].valueType = VALUE_UNSIGNED_INT;
			values[i].value.uiVal = temperature(card);
		}
	}
	return NVML_SUCCESS;
}

/* Memory has no faults. */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *correctable,
	unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(correctable && uncorrectable && pending && failed, NVML_ERROR_INVALID_ARGUMENT);
	*correctable = *uncorrectable = *pending = *failed = 0;
	return NVML_SUCCESS;
}
