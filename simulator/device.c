/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct sim_device *device;
_Atomic int32_t card_shifts[SIM_CARDS];

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool attached; /* everything else has been written */
static int device_fd = -1;
static uint64_t own_tag;
static bool has_node[SIM_CARDS];	 /* by card */
static uint32_t capabilities[SIM_CARDS]; /* by card: a bit for each GPU instance */
/* On a page that the kernel clears in a forked child: a child owns neither the parent's slot nor
 * its record lock. */
static _Atomic bool *survived;

enum device_state device_state(void)
{
	if (!atomic_load_explicit(&attached, memory_order_acquire))
		return DEVICE_ABSENT;
	return atomic_load_explicit(survived, memory_order_relaxed) ? DEVICE_READY : DEVICE_FORKED;
}

uint64_t process_tag(void)
{
	return own_tag;
}

void profile_uuid(const struct sim_profile *profile, char text[48])
{
	int at = snprintf(text, 48, profile->parent ? "MIG-" : "GPU-");

	for (int i = 0; i < 16; i++) {
		const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";

		at += snprintf(text + at, 48 - (size_t)at, "%s%02x", dash, profile->uuid[i]);
	}
}

static struct flock process_byte(uint32_t process)
{
	return (struct flock){
		.l_whence = SEEK_SET,
		.l_start = (off_t)(offsetof(struct sim_device, processes) +
				   process * sizeof(struct sim_process)),
		.l_len = 1,
	};
}

bool process_alive(uint64_t tag, int *pid)
{
	struct flock byte = process_byte(tag_process(tag));
	struct sim_process *process = &device->processes[tag_process(tag)];

	if (atomic_load(&process->generation) != tag >> 16)
		return false;
	byte.l_type = F_WRLCK;
	/* An open-file-description lock conflicts with this process's own POSIX lock, too. */
	if (fcntl(device_fd, F_OFD_GETLK, &byte) != 0)
		return true; /* if it cannot be queried, it does not count as dead */
	if (byte.l_type == F_UNLCK)
		return false;
	if (pid)
		*pid = byte.l_pid > 0 ? byte.l_pid : 0;
	return true;
}

/* A slot belongs to the holder of its lock; the generation distinguishes its holders. A process's
 * own POSIX locks do not conflict with itself, and it may already hold one: the other simulated
 * library's, or that of a second copy. So the byte is checked first, and of two copies that find it
 * free at the same moment, one gets to raise the generation. */
static bool take(uint32_t place)
{
	struct sim_process *process = &device->processes[place];
	uint64_t generation = atomic_load(&process->generation);
	struct flock byte = process_byte(place);

	byte.l_type = F_WRLCK;
	if (fcntl(device_fd, F_OFD_GETLK, &byte) != 0 || byte.l_type != F_UNLCK)
		return false;
	byte = process_byte(place);
	byte.l_type = F_WRLCK;
	if (fcntl(device_fd, F_SETLK, &byte) != 0 ||
		!atomic_compare_exchange_strong(&process->generation, &generation, generation + 1))
		return false;
	memset(&device->checkpoints[place], 0, sizeof(device->checkpoints[place]));
	own_tag = (generation + 1) << 16 | (place + 1);
	return true;
}

static bool take_place(void)
{
	for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
		uint32_t high = atomic_load(&device->processes_high);

		if (!take(i))
			continue;
		while (high < i + 1 &&
			!atomic_compare_exchange_weak(&device->processes_high, &high, i + 1))
			;
		return true;
	}
	return false;
}

static struct sim_device *map_file(int fd)
{
	struct sim_device *mapped;
	struct stat file;

	if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
		(uint64_t)file.st_size < SIM_FILE_BYTES)
		return NULL;
	mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return NULL;
	if (mapped->header.magic != SIM_MAGIC || mapped->header.layout != SIM_LAYOUT ||
		mapped->header.card_count > SIM_CARDS ||
		mapped->header.instance_count > SIM_CARDS - mapped->header.card_count) {
		munmap(mapped, sizeof(*mapped));
		return NULL;
	}
	return mapped;
}

struct sim_card *card_at(uint32_t place)
{
	for (uint32_t i = 0; i < SIM_CARDS; i++) {
		if (card_place(&device->cards[i]) == place)
			return &device->cards[i];
	}
	return &device->cards[place];
}

static bool map_card(uint32_t index, uint32_t place)
{
	const size_t start = offsetof(struct sim_device, cards) + place * sizeof(struct sim_card);

	if (mmap(&device->cards[index], sizeof(struct sim_card), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, device_fd, (off_t)start) == MAP_FAILED)
		return false;
	card_shifts[index] = (int32_t)place - (int32_t)index;
	return true;
}

bool cards_map(const uint32_t places[SIM_CARDS])
{
	uint32_t before[SIM_CARDS];

	for (uint32_t i = 0; i < SIM_CARDS; i++)
		before[i] = card_place(&device->cards[i]);
	for (uint32_t i = 0; i < SIM_CARDS; i++) {
		if (before[i] == places[i] || map_card(i, places[i]))
			continue;
		while (i-- > 0)
			map_card(i, before[i]);
		return false;
	}
	return true;
}

static bool mark_process(void)
{
	survived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (survived == MAP_FAILED)
		return false;
	if (madvise((void *)survived, 4096, MADV_WIPEONFORK) != 0)
		return false;
	atomic_store(survived, true);
	return true;
}

static void inherit_place(void)
{
	for (uint32_t i = 0; i < device_entries(); i++)
		card_inherit(&device->cards[i]);
}

/* Once: neither the descriptor nor the mapping is given up. NULL if there is no device. */
static struct sim_device *mapped_file(void)
{
	static struct sim_device *mapped;
	const char *path = getenv(SIM_DEVICE_ENV);

	if (device_fd < 0)
		device_fd = open(path ? path : SIM_DEVICE_PATH, O_RDWR | O_CLOEXEC);
	if (device_fd >= 0 && !mapped)
		mapped = map_file(device_fd);
	return mapped;
}

uint32_t device_cuda_version(void)
{
	pthread_mutex_lock(&attaching);
	const struct sim_device *mapped = mapped_file();
	pthread_mutex_unlock(&attaching);
	return mapped ? mapped->header.cuda_version : UINT32_MAX;
}

/* No card is behind a node, so ENXIO is success. On the host, which names the file, nothing makes
 * nodes. */
static bool may_open(const char *format, uint32_t number)
{
	char path[48];
	int fd;

	if (getenv(SIM_DEVICE_ENV))
		return true;
	snprintf(path, sizeof(path), format, number);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENXIO;
	close(fd);
	return true;
}

/* The cards of a container are those whose nodes it has and may open, as with a driver. Of a
 * partitioned card it has those instances of which it has both capabilities, numbered as in
 * /proc/driver/nvidia-caps/mig-minors: of each card 15 GPU instances with 8 compute instances. */
static void find_nodes(void)
{
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		has_node[i] = may_open("/dev/nvidia%u", i);
		for (uint32_t gpu = 1; has_node[i] && gpu <= SIM_INSTANCES; gpu++) {
			const uint32_t number = 3 + (i * 15 + gpu) * 9;

			if (may_open("/dev/nvidia-caps/nvidia-cap%u", number) &&
				may_open("/dev/nvidia-caps/nvidia-cap%u", number + 1))
				capabilities[i] |= 1u << gpu;
		}
	}
}

bool device_has_node(uint32_t entry)
{
	const struct sim_profile *profile = &device->profiles[entry];

	if (profile->parent == 0)
		return has_node[entry];
	return capabilities[profile->parent - 1] >> profile->gpu_instance & 1;
}

static void attach(void)
{
	struct sim_device *mapped = mapped_file();

	if (!mapped)
		return;
	device = mapped;
	if (!mark_process() || !take_place()) {
		device = NULL;
		return;
	}
	inherit_place();
	find_nodes();
	atomic_store_explicit(&attached, true, memory_order_release);
}

enum device_state device_attach(void)
{
	if (atomic_load_explicit(&attached, memory_order_acquire))
		return device_state();
	pthread_mutex_lock(&attaching);
	if (!atomic_load(&attached))
		attach();
	pthread_mutex_unlock(&attaching);
	return device_state();
}

enum device_state device_attach_child(void)
{
	pthread_mutex_lock(&attaching);
	if (atomic_load(&attached) && !atomic_load(survived) && take_place()) {
		atomic_store(survived, true);
		inherit_place();
	}
	pthread_mutex_unlock(&attaching);
	return device_attach();
}

void trace(const char *symbol, const char *what)
{
	const char *place = getenv("GPUSHARE_SIM_TRACE");
	FILE *file = place && *place == '/' ? fopen(place, "ae") : stderr;

	if (!place || !file)
		return;
	fprintf(file, "gpushare simulator: %s %s\n", symbol, what);
	if (file != stderr)
		fclose(file);
}
