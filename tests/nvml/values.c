/* What one card tells of itself at work: each value of the driving file by the calls that
   give it, in NVML's own units. */
#include "stub.h"

#define TEMPERATURE_V1 0x0100000cu
#define ALL_LINKS 0xffffffffu
enum { UNSIGNED = 1, UNSIGNED_LONG_LONG = 3 };

struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int celsius; };
struct licence {
    unsigned code, state;
    char info[128], product[128];
    unsigned enabled, year;
    unsigned short month_to_second[5];
    unsigned char status;
};
struct licences { int supported; unsigned count; struct licence feature[3]; };
struct violation { unsigned long long reference, violated; };
struct field {
    unsigned id, scope;
    long long time, latency;
    int type, code;
    union { unsigned u; unsigned long long ull; } value;
};

static int tell_field(struct field *field, double known, int type) {
    field->type = type;
    if (type == UNSIGNED)
        TELL(&field->value.u, known);
    else
        TELL(&field->value.ull, known);
    return OK;
}

static int answer_field(const struct card *card, struct field *field) {
    /* A single link's share; the stub's cards have two. */
    int shares = field->scope == ALL_LINKS ? 1 : 2;
    const double *v = card->value;
    switch (field->id) {
    case 74:
        return tell_field(field, v[V_power_violation], UNSIGNED_LONG_LONG);
    case 75:
        return tell_field(field, v[V_thermal_violation], UNSIGNED_LONG_LONG);
    case 82:
        return tell_field(field, v[V_memory_temperature], UNSIGNED);
    case 138:
        return tell_field(field, v[V_nvlink_tx] / shares, UNSIGNED_LONG_LONG);
    case 139:
        return tell_field(field, v[V_nvlink_rx] / shares, UNSIGNED_LONG_LONG);
    default:
        return NOT_SUPPORTED;
    }
}

static int tell_utilization(double known, unsigned *out, unsigned *period_us) {
    *period_us = 167000;
    TELL(out, known);
    return OK;
}

#pragma GCC visibility push(default)

#define NUMBER(function, name, type)                                                   \
    int nvml##function(struct slot *slot, type *out) {                                 \
        ENTER(s, card, slot, #function);                                               \
        TELL(out, card->value[V_##name]);                                              \
        return OK;                                                                     \
    }
NUMBER(DeviceGetPowerUsage, power, unsigned)
NUMBER(DeviceGetTotalEnergyConsumption, energy, unsigned long long)
NUMBER(DeviceGetPcieReplayCounter, pcie_replay, unsigned)
NUMBER(DeviceGetRetiredPagesPendingStatus, retired_pending, unsigned)

int nvmlDeviceGetUtilizationRates(struct slot *slot, struct utilization *out) {
    ENTER(s, card, slot, "DeviceGetUtilizationRates");
    if (card->mig)
        return NOT_SUPPORTED;
    TELL(&out->gpu, card->value[V_gpu_util]);
    TELL(&out->memory, card->value[V_memory_util]);
    return OK;
}

int nvmlDeviceGetEncoderUtilization(struct slot *slot, unsigned *out, unsigned *period) {
    ENTER(s, card, slot, "DeviceGetEncoderUtilization");
    return tell_utilization(card->value[V_encoder], out, period);
}

int nvmlDeviceGetDecoderUtilization(struct slot *slot, unsigned *out, unsigned *period) {
    ENTER(s, card, slot, "DeviceGetDecoderUtilization");
    return tell_utilization(card->value[V_decoder], out, period);
}

int nvmlDeviceGetTemperature(struct slot *slot, unsigned sensor, unsigned *out) {
    ENTER(s, card, slot, "DeviceGetTemperature");
    if (sensor)
        return INVALID;
    TELL(out, card->value[V_temperature]);
    return OK;
}

#if !defined OLD_DRIVER && !defined MIDDLE_DRIVER
int nvmlDeviceGetTemperatureV(struct slot *slot, struct temperature *out) {
    ENTER(s, card, slot, "DeviceGetTemperatureV");
    if (out->version != TEMPERATURE_V1)
        return VERSION;
    if (out->sensor)
        return INVALID;
    TELL(&out->celsius, card->value[V_temperature]);
    return OK;
}
#endif

int nvmlDeviceGetClockInfo(struct slot *slot, unsigned type, unsigned *out) {
    ENTER(s, card, slot, "DeviceGetClockInfo");
    if (type > 2)
        return NOT_SUPPORTED;
    TELL(out, card->value[type == 2 ? V_memory_clock : V_sm_clock]);
    return OK;
}

int nvmlDeviceGetViolationStatus(struct slot *slot, unsigned policy,
                                 struct violation *out) {
    ENTER(s, card, slot, "DeviceGetViolationStatus");
    if (policy > 1)
        return NOT_SUPPORTED;
    out->reference = 0;
    TELL(&out->violated, card->value[policy ? V_thermal_violation : V_power_violation]);
    return OK;
}

int nvmlDeviceGetPcieThroughput(struct slot *slot, unsigned counter, unsigned *out) {
    ENTER(s, card, slot, "DeviceGetPcieThroughput");
    if (counter > 1)
        return INVALID;
    TELL(out, card->value[counter ? V_pcie_rx : V_pcie_tx]);
    return OK;
}

int nvmlDeviceGetTotalEccErrors(struct slot *slot, unsigned uncorrected,
                                unsigned aggregate, unsigned long long *out) {
    static const int place[2][2] = {{V_ecc_sbe_volatile, V_ecc_sbe_aggregate},
                                    {V_ecc_dbe_volatile, V_ecc_dbe_aggregate}};
    ENTER(s, card, slot, "DeviceGetTotalEccErrors");
    if (uncorrected > 1 || aggregate > 1)
        return INVALID;
    TELL(out, card->value[place[uncorrected][aggregate]]);
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetRemappedRows(struct slot *slot, unsigned *correctable,
                              unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    ENTER(s, card, slot, "DeviceGetRemappedRows");
    TELL(correctable, card->value[V_rows_correctable]);
    TELL(uncorrectable, card->value[V_rows_uncorrectable]);
    TELL(pending, card->value[V_rows_pending]);
    TELL(failure, card->value[V_rows_failure]);
    return OK;
}
#endif

int nvmlDeviceGetRetiredPages(struct slot *slot, unsigned cause, unsigned *count,
                              unsigned long long *addresses) {
    ENTER(s, card, slot, "DeviceGetRetiredPages");
    unsigned room = *count;
    if (cause > 1)
        return INVALID;
    TELL(count, card->value[cause ? V_retired_dbe : V_retired_sbe]);
    if (*count > room)
        return SMALL;
    for (unsigned i = 0; addresses && i < *count; i++)
        addresses[i] = 0x1000ull * (i + 1);
    return OK;
}

/* A feature's state; a card without a vGPU supports no licence and has no feature. */
int nvmlDeviceGetGridLicensableFeatures_v4(struct slot *slot, struct licences *out) {
    ENTER(s, card, slot, "DeviceGetGridLicensableFeatures");
    memset(out, 0, sizeof *out);
    TELL(&out->feature[0].state, card->value[V_license]);
    out->supported = out->count = card->value[V_license] > 0;
    return OK;
}

int nvmlDeviceGetFieldValues(struct slot *slot, int count, struct field *fields) {
    ENTER(s, card, slot, "DeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        int failure = stub_failure_of(s, card->uuid, "FieldValue", fields[i].id);
        fields[i].code = failure ? failure : answer_field(card, &fields[i]);
    }
    return OK;
}
