/* A stand-in libnvidia-ml.so.1: the functions that pynvml calls for our telemetry, with the struct layouts of nvml.h.
 *
 * NVML_STANDIN in the environment says what machine it plays, as words separated by blanks:
 *   gpus=8          number of GPUs                  mismatch        nvmlInit: driver/library version mismatch
 *   lost=5          GPU 5 has no handle any more    nodriver        nvmlInit: driver not loaded
 *   falls=5:3       GPU 5 is lost from the third    nopower=2       GPU 2 does not tell its power
 *                   reading of its memory on        unified         no memory of its own (GB10)
 *   old             no nvmlDeviceGetMemoryInfo_v2   mig=3           MIG is on: no utilisation
 *   held=0:123:1024 pid 123 holds 1024 MiB on GPU 0 (may stand more than once)
 *   ecc=2:4         4 uncorrected errors on GPU 2   remap=2         rows of GPU 2 wait to be remapped
 *   xid=1:79        one Xid 79 of GPU 1             hang            the first utilisation reading never returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
       FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, MISMATCH = 18 };
#define MIB (1ULL << 20)
#define TOTAL (97887 * MIB)

static char cards[64];          /* a handle is the address of a card */
static int reads[64], ready, xid_told;

static const char *option(const char *name, int nth) {
    static char word[64];
    const char *at = getenv("NVML_STANDIN");
    size_t length = strlen(name);
    while (at && *at) {
        size_t size = strcspn(at, " ");
        if (size >= length && !strncmp(at, name, length) && (size == length || at[length] == '=') && nth-- == 0) {
            snprintf(word, sizeof word, "%.*s", (int)(size > length ? size - length - 1 : 0), at + length + 1);
            return word;
        }
        at += size + strspn(at + size, " ");
    }
    return NULL;
}
static int number(const char *name, int otherwise) { const char *text = option(name, 0); return text ? atoi(text) : otherwise; }
static int second(const char *name) { const char *text = option(name, 0); text = text ? strchr(text, ':') : NULL; return text ? atoi(text + 1) : -1; }
static int index_of(void *device) { return (int)((char *)device - cards); }
static int is(const char *name, void *device) { return number(name, -1) == index_of(device); }
static int alive(void *device) {
    return !is("lost", device) && !(is("falls", device) && reads[index_of(device)] >= second("falls"));
}
static unsigned long long held_on(int gpu) {
    unsigned long long sum = 0;
    for (int nth = 0; ; nth++) {
        const char *text = option("held", nth);
        int card, pid; unsigned long long mib;
        if (!text) return sum * MIB;
        if (sscanf(text, "%d:%d:%llu", &card, &pid, &mib) == 3 && card == gpu) sum += mib;
    }
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (option("mismatch", 0)) return MISMATCH;
    if (option("nodriver", 0)) return DRIVER_NOT_LOADED;
    ready = 1;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { ready = 0; return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95.05"); return ready ? OK : UNINITIALIZED; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "13.580.95"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("gpus", 8); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &cards[index];
    return alive(*device) ? OK : GPU_IS_LOST;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "NVIDIA RTX PRO 6000 Blackwell Server Edition");
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", index_of(device));
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, slot, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 16 + index_of(device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { (void)device; *major = 12; *minor = 0; return OK; }

struct memory { unsigned long long total, free, used; };
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
static int memory(void *device, unsigned long long *used) {
    reads[index_of(device)]++;
    if (!alive(device)) return GPU_IS_LOST;
    *used = held_on(index_of(device)) + 4 * MIB;
    return option("unified", 0) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *info) {
    int code = memory(device, &info->used);
    info->used += 600 * MIB;    /* the first form counts what the driver keeps as used */
    info->total = TOTAL;
    info->free = TOTAL - info->used;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory2 *info) {
    int code;
    if (option("old", 0)) return FUNCTION_NOT_FOUND;
    code = memory(device, &info->used);
    info->total = TOTAL;
    info->reserved = 600 * MIB;
    info->free = TOTAL - info->used - info->reserved;
    return code;
}
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct rates *rates) {
    while (option("hang", 0)) sleep(60);
    if (is("mig", device)) return NOT_SUPPORTED;
    rates->gpu = 10 * index_of(device);
    rates->memory = 1;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 100500 + 1000 * index_of(device);
    return is("nopower", device) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { (void)device; *milliwatts = 600000; return OK; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = 40 + index_of(device) + sensor; return OK; }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors) {
    *errors = is("ecc", device) && kind == 1 && counter == 0 ? second("ecc") : 0;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed) {
    *right = *wrong = *failed = 0;
    *pending = is("remap", device);
    return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    *current = *pending = is("mig", device);
    return OK;
}

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *list) {
    unsigned room = *count, found = 0;
    for (int nth = 0; ; nth++) {
        const char *text = option("held", nth);
        int card, pid; unsigned long long mib;
        if (!text) break;
        if (sscanf(text, "%d:%d:%llu", &card, &pid, &mib) != 3 || card != index_of(device)) continue;
        if (list && found < room) {
            struct process one = { (unsigned)pid, mib * MIB, ~0u, ~0u };
            list[found] = one;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *list) {
    (void)device; (void)list;
    *count = 0;
    return OK;
}

struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetCreate(void **set) { *set = &xid_told; return OK; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { (void)device; (void)types; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout) {
    (void)set; (void)timeout;
    if (!option("xid", 0) || xid_told) return TIMEOUT;
    xid_told = 1;
    event->device = &cards[number("xid", 0)];
    event->type = 8;
    event->data = second("xid");
    return OK;
}
