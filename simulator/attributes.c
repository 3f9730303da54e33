/* SPDX-License-Identifier: Apache-2.0
 *
 * Device attributes: figures of the profile, limits that all cards since Volta share (the tables of
 * technical specifications in the CUDA programming guide), and the simulator's capabilities. An
 * attribute that is not listed here is 0, which for a capability means that it is absent.
 */
#include "mps.h"

static int profile_attribute(const struct sim_profile *profile, CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return (int)profile->multiprocessors;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return (int)profile->compute_major;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return (int)profile->compute_minor;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		return (int)profile->clock_sm_mhz * 1000;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		return (int)profile->clock_memory_mhz * 1000;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		return (int)profile->memory_bus_bits;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		return (int)profile->l2_bytes;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return (int)profile->threads_per_multiprocessor;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		return (int)profile->shared_bytes_per_multiprocessor;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		return (int)profile->shared_bytes_per_block_optin;
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
		return profile->compute_major >= 9;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return (int)profile->pci_bus;
	case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
		return mps_active();
	case CU_DEVICE_ATTRIBUTE_INTEGRATED:
		return profile->unified != SIM_OWN_MEMORY;
	default:
		return 0;
	}
}

static int common_attribute(CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
		return 64;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
	case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
		return 2147483647;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
		return 65535;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
		return 49152;
	case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
		return 65536;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
	case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
		return 32;
	case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
	case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
		return 512;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		return 16;
	default:
		return 0;
	}
}

static bool capability(CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
	case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
	case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		return true;
	default:
		return false;
	}
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
	REQUIRE_DRIVER();
	REQUIRE(value && (int)attribute > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	*value = profile_attribute(card_profile(device_card(ordinal)), attribute);
	if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
		*value = (int)device->faults[card_place(device_card(ordinal))].compute_mode;
	if (*value == 0)
		*value = common_attribute(attribute);
	if (*value == 0)
		*value = capability(attribute);
	return CUDA_SUCCESS;
}
