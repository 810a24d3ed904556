/* Stands in for NVIDIA's management library.
 * FAKE_NVML_DEVICES: UUIDs of the devices, with commas; default: GPU-fake. A UUID MIG-... is an instance of the GPU
 * before it. FAKE_NVML: hang or crash.
 * FAKE_NVML_PROCESSES: a file with the numbers of the processes on the first device, or "lost". Those of another
 * device are in a file with the device's UUID behind a dot. A number may be followed by a colon and MiB in use.
 * FAKE_NVML_REASONS: reasons for reduced clocks, a number.
 * FAKE_NVML_EVENTS: a file with events to come, a line each: place of the device, type and data as numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static char names[MOST][64];
static long events_read;
static int has_events;
static int count;

static void read_devices(void) {
    const char *list = getenv("FAKE_NVML_DEVICES");
    char copy[1024] = "GPU-fake";
    if (list) strncpy(copy, list, sizeof copy - 1);
    count = 0;
    for (char *name = strtok(copy, ","); name && count < MOST; name = strtok(NULL, ",")) strncpy(names[count++], name, 63);
}
static int is_instance(int place) { return !strncmp(names[place], "MIG-", 4); }
static int place_of(void *handle) { return (int)((char(*)[64])handle - names); }
/* Return the place of a GPU, of all entries that are no instances. */
static int gpu_at(unsigned index) {
    for (int place = 0; place < count; place++)
        if (!is_instance(place) && !index--) return place;
    return -1;
}

int nvmlInitWithFlags(unsigned flags) { read_devices(); return flags; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { for (*found = 0; gpu_at(*found) >= 0; ++*found); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int place = gpu_at(index);
    if (place < 0) return 6;
    *handle = names[place];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (int place = 0; place < count; place++)
        if (!strcmp(names[place], uuid)) { *handle = names[place]; return 0; }
    return 6;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) { strncpy(text, handle, length); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    strncpy(text, is_instance(place_of(handle)) ? "Fake MIG 1g.10gb" : "Fake", length);
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    int next = place_of(handle) + 1;
    *current = *pending = next < count && is_instance(next);
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *found) { (void)handle; *found = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    int place = place_of(handle) + 1 + (int)index;
    for (int between = place_of(handle) + 1; between <= place; between++)
        if (between >= count || !is_instance(between)) return 6;
    *instance = names[place];
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *found) {
    const char *mood = getenv("FAKE_NVML");
    if (mood && !strcmp(mood, "hang")) for (;;) pause();
    if (mood && !strcmp(mood, "crash")) abort();
    if (is_instance(place_of(handle))) return 3;
    found->gpu = 87;
    found->memory = 5;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *found) {
    unsigned long long total = is_instance(place_of(handle)) ? 10ULL << 30 : 80ULL << 30;
    found->total = total;
    found->free = total * 3 / 8;
    found->used = total - found->free;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *found) {
    const char *reasons = getenv("FAKE_NVML_REASONS");
    (void)handle;
    *found = reasons ? strtoull(reasons, NULL, 0) : 0;
    return 0;
}
int nvmlDeviceGetClockInfo(void *handle, unsigned kind, unsigned *found) {
    (void)handle;
    if (kind != 1) return 2;
    *found = 1215;
    return 0;
}
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *found) {
    (void)handle;
    if (sensor != 0) return 2;
    *found = 84;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *found) {
    (void)handle;
    *found = 312500;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *handle, unsigned kind, unsigned counter, unsigned long long *found) {
    (void)handle;
    *found = kind == 1 && counter == 0 ? 2 : 99;
    return 0;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *fixed, unsigned *failed, unsigned *pending, unsigned *failure) {
    (void)handle;
    *fixed = 3; *failed = 1; *pending = *failure = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *most, struct process *found) {
    const char *name = getenv("FAKE_NVML_PROCESSES");
    char path[4096];
    int place = place_of(handle), is_lost = 0, is_full;
    unsigned number = 0, pid, mebibytes;
    FILE *file = NULL;
    if (name) {
        snprintf(path, sizeof path, place ? "%s.%s" : "%s", name, names[place]);
        file = fopen(path, "r");
    }
    for (; file && fscanf(file, "%u", &pid) == 1; number++) {
        if (fscanf(file, ":%u", &mebibytes) != 1) mebibytes = 1;
        if (number < *most) { found[number].pid = pid; found[number].memory = (unsigned long long)mebibytes << 20; }
    }
    if (file) is_lost = fgetc(file) == 'l';
    if (file) fclose(file);
    if (is_lost) return 15;
    is_full = number > *most;
    *most = number;
    return is_full ? 7 : 0;
}
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    *types = is_instance(place_of(handle)) ? 0 : 0x1f;
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = &events_read; return 0; }
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    (void)handle; (void)set;
    has_events = types == 0xa;
    return has_events ? 0 : 3;
}
int nvmlEventSetWait_v2(void *set, struct event *found, unsigned milliseconds) {
    const char *name = getenv("FAKE_NVML_EVENTS");
    unsigned place;
    int is_there = 0;
    FILE *file = name && has_events ? fopen(name, "r") : NULL;
    (void)set;
    if (file) {
        fseek(file, events_read, SEEK_SET);
        is_there = fscanf(file, "%u %llu %llu", &place, &found->type, &found->data) == 3;
        if (is_there) { events_read = ftell(file); found->device = names[place]; }
        fclose(file);
    }
    if (is_there) return 0;
    usleep(milliseconds < 20 ? milliseconds * 1000 : 20000);
    return 10;
}
