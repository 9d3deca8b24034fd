/* One end of a connection over the C interface, driven by a test: commands come as lines of JSON on stdin, answers leave
 * on stdout (tests/src/protocol.rs). The test writes compact JSON with the keys of a command in a fixed order, therefore
 * a value is what follows the first occurrence of its key. */

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QPS_MAX 65536
#define STATUSES 32
#define COMPLETIONS 64
#define LINK_MILLIS 60000

struct connection {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    uint32_t psn;
};

/* Work requests of a queue pair under load. */
struct tally {
    uint64_t sends, recvs, sends_done, recvs_done, sends_ended[STATUSES], recvs_ended[STATUSES];
    bool has_failed;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct connection *qps[QPS_MAX];
static int qp_count;
static uint64_t state;

static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("{\"error\":\"");
    vprintf(format, arguments);
    printf("\"}\n");
    va_end(arguments);
}

static const char *value_of(const char *text, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *found = strstr(text, quoted);
    if (!found) {
        fprintf(stderr, "no %s in %s\n", key, text);
        exit(2);
    }
    return found + strlen(quoted);
}

static uint64_t number(const char *text, const char *key)
{
    return strtoull(value_of(text, key), NULL, 10);
}

static uint64_t now_millis(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t up_to(uint64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 16) % (bound + 1);
}

static struct connection *connection_of(const char *line)
{
    uint64_t place = number(line, "qp");
    return place < (uint64_t)qp_count ? qps[place] : NULL;
}

static void make_mr(const char *line)
{
    size_t bytes = number(line, "len_bytes");
    mr = ibv_reg_mr(pd, calloc(1, bytes), bytes, (int)number(line, "access"));
    if (mr)
        printf("{\"ok\":{\"mr\":0,\"addr\":%lu,\"rkey\":%u}}\n", (uintptr_t)mr->addr, mr->rkey);
    else
        refuse("ibv_reg_mr: %d", errno);
}

static void make_qp(const char *line)
{
    struct connection *new = calloc(1, sizeof *new);
    uint32_t depth = (uint32_t)number(line, "depth");
    new->cq = ibv_create_cq(context, 2 * (int)depth, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = { .send_cq = new->cq, .recv_cq = new->cq, .cap = { depth, depth, 4, 4, 0 },
        .qp_type = IBV_QPT_RC };
    new->qp = new->cq ? ibv_create_qp(pd, &attr) : NULL;
    union ibv_gid gid;
    char text[INET6_ADDRSTRLEN];
    if (!new->qp || qp_count == QPS_MAX || ibv_query_gid(context, 1, (int)number(line, "gid_index"), &gid)) {
        refuse("no queue pair: %d", errno);
        return;
    }
    new->psn = (uint32_t)up_to(0xffffff);
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
    printf("{\"ok\":{\"qp\":%d,\"qpn\":%u,\"psn\":%u,\"gid\":\"%s\"}}\n", qp_count, new->qp->qp_num, new->psn, text);
    qps[qp_count++] = new;
}

static int destroy(struct connection *old)
{
    int failed = ibv_destroy_qp(old->qp);
    failed = failed ? failed : ibv_destroy_cq(old->cq);
    free(old);
    return failed;
}

static void destroy_qp(const char *line)
{
    struct connection *old = connection_of(line);
    qps[number(line, "qp")] = NULL;
    int failed = old ? destroy(old) : EINVAL;
    if (failed)
        refuse("ibv_destroy_qp: %d", failed);
    else
        printf("{\"ok\":{}}\n");
}

/* A memif has a link while the other process has its port open. */
static bool wait_link(void)
{
    struct ibv_port_attr port;
    struct timespec pause = { 0, 5000000 };
    for (uint64_t end = now_millis() + LINK_MILLIS; now_millis() < end; nanosleep(&pause, NULL))
        if (!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE)
            return true;
    return false;
}

static void connect_qp(const char *line)
{
    struct connection *own = connection_of(line);
    const char *peer = value_of(line, "peer"), *gid = value_of(peer, "gid") + 1;
    uint32_t mtu_bytes = (uint32_t)number(line, "path_mtu_bytes");
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        .path_mtu = (enum ibv_mtu)(__builtin_ctz(mtu_bytes) - 7),
        .dest_qp_num = (uint32_t)number(peer, "qpn"), .rq_psn = (uint32_t)number(peer, "psn"), .sq_psn = own->psn,
        .max_rd_atomic = (uint8_t)number(line, "rd_atomic"), .max_dest_rd_atomic = (uint8_t)number(line, "rd_atomic"),
        .min_rnr_timer = (uint8_t)number(line, "min_rnr_timer"), .timeout = (uint8_t)number(line, "timeout"),
        .retry_cnt = (uint8_t)number(line, "retry_count"), .rnr_retry = (uint8_t)number(line, "rnr_retry"),
        .ah_attr = { .is_global = 1, .port_num = 1,
            .grh = { .sgid_index = (uint8_t)number(peer, "gid_index"), .hop_limit = 64 } },
    };
    char text[INET6_ADDRSTRLEN] = { 0 };
    strncpy(text, gid, strcspn(gid, "\""));
    inet_pton(AF_INET6, text, attr.ah_attr.grh.dgid.raw);
    if (!wait_link()) {
        refuse("the port has no link");
        return;
    }
    static const int masks[] = {
        IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
    };
    for (int step = 0; step < 3; step++) {
        attr.qp_state = (enum ibv_qp_state)(IBV_QPS_INIT + step);
        int failed = ibv_modify_qp(own->qp, &attr, IBV_QP_STATE | masks[step]);
        if (failed) {
            refuse("%s: ibv_modify_qp: %d", failed == ETIMEDOUT ? "no neighbour answers" : "not connected", failed);
            return;
        }
    }
    printf("{\"ok\":{}}\n");
}

static void write_bytes(const char *line)
{
    uint8_t *to = (uint8_t *)mr->addr + number(line, "offset");
    for (const char *hex = value_of(line, "hex") + 1; *hex != '"'; hex += 2)
        sscanf(hex, "%2hhx", to++);
    printf("{\"ok\":{}}\n");
}

static void read_bytes(const char *line)
{
    const uint8_t *from = (const uint8_t *)mr->addr + number(line, "offset");
    printf("{\"ok\":{\"hex\":\"");
    for (uint64_t left = number(line, "len_bytes"); left; left--)
        printf("%02x", *from++);
    printf("\"}}\n");
}

static enum ibv_wr_opcode op_of(const char *name)
{
    static const struct { const char *name; enum ibv_wr_opcode op; } ops[] = { { "send\"", IBV_WR_SEND },
        { "send_with_imm\"", IBV_WR_SEND_WITH_IMM }, { "write\"", IBV_WR_RDMA_WRITE },
        { "write_with_imm\"", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read\"", IBV_WR_RDMA_READ } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strncmp(name + 1, ops[i].name, strlen(ops[i].name)))
            return ops[i].op;
    fprintf(stderr, "no operation: %.20s\n", name);
    exit(2);
}

static int post_send(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t imm, struct ibv_sge sge,
    uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .imm_data = htonl(imm),
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { remote_addr, rkey } }, *bad;
    return ibv_post_send(qp, &wr, &bad);
}

static int post_recv(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge sge)
{
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}

static struct ibv_sge sge_of(uint64_t offset, uint32_t length)
{
    return (struct ibv_sge){ (uintptr_t)mr->addr + offset, length, mr->lkey };
}

/* A command has one work request with one piece of memory. */
static void post(const char *line, bool is_send)
{
    struct connection *own = connection_of(line);
    const char *pieces = value_of(line, "pieces");
    struct ibv_sge sge = sge_of(number(pieces, "offset"), (uint32_t)number(pieces, "len_bytes"));
    uint64_t wr_id = number(line, "wr_id");
    int failed = is_send ? post_send(own->qp, wr_id, op_of(value_of(line, "op")), (uint32_t)number(line, "imm"), sge,
                     number(line, "remote_addr"), (uint32_t)number(line, "rkey"))
                         : post_recv(own->qp, wr_id, sge);
    if (failed)
        refuse("a post: %d", failed);
    else
        printf("{\"ok\":{}}\n");
}

static void poll(const char *line)
{
    struct connection *own = connection_of(line);
    uint64_t left = number(line, "count"), end = now_millis() + number(line, "timeout_millis");
    const char *separator = "";
    printf("{\"ok\":{\"completions\":[");
    while (left && now_millis() < end) {
        struct ibv_wc wc;
        if (ibv_poll_cq(own->cq, 1, &wc) != 1)
            continue;
        printf("%s{\"wr_id\":%lu,\"status\":%u,\"opcode\":%u,\"len_bytes\":%u,\"imm\":", separator, wc.wr_id, wc.status,
            wc.opcode, wc.byte_len);
        printf(wc.wc_flags & IBV_WC_WITH_IMM ? "%u}" : "null}", ntohl(wc.imm_data));
        separator = ",";
        left--;
    }
    printf("]}}\n");
}

/* Posts until as many work requests are outstanding as `line` demands. `wr_id`: even of sends, odd of receives. */
static int fill(const char *line, struct connection *own, struct tally *tally)
{
    static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };
    uint64_t outstanding = number(line, "outstanding"), remote_addr = number(line, "remote_addr");
    uint32_t len_bytes = (uint32_t)number(line, "len_bytes"), rkey = (uint32_t)number(line, "rkey");
    int failed = 0;
    for (; !failed && tally->recvs - tally->recvs_done < outstanding; tally->recvs += !failed)
        failed = post_recv(own->qp, 2 * tally->recvs + 1, sge_of(0, len_bytes));
    for (; !failed && tally->sends - tally->sends_done < outstanding; tally->sends += !failed)
        failed = post_send(own->qp, 2 * tally->sends, ops[up_to(4)], 0, sge_of(0, (uint32_t)up_to(len_bytes)), remote_addr,
            rkey);
    return failed;
}

static void take(struct connection *own, struct tally *tally)
{
    struct ibv_wc wcs[COMPLETIONS];
    int taken = ibv_poll_cq(own->cq, COMPLETIONS, wcs);
    for (int i = 0; i < taken; i++) {
        bool is_recv = wcs[i].wr_id % 2;
        ++*(is_recv ? &tally->recvs_done : &tally->sends_done);
        ++(is_recv ? tally->recvs_ended : tally->sends_ended)[wcs[i].status % STATUSES];
        tally->has_failed |= wcs[i].status != IBV_WC_SUCCESS;
    }
}

static void print_ended(const char *name, const uint64_t *ended)
{
    const char *separator = "";
    printf(",\"%s\":{", name);
    for (int status = 0; status < STATUSES; status++)
        if (ended[status]) {
            printf("%s\"%d\":%lu", separator, status, ended[status]);
            separator = ",";
        }
    printf("}");
}

static void load(const char *line)
{
    uint64_t post_end = now_millis() + number(line, "post_millis"), wait_end = post_end + number(line, "wait_millis");
    struct connection *used[64];
    struct tally tallies[64] = { 0 };
    int count = 0;
    state = number(line, "seed") | 1;
    for (const char *list = value_of(line, "qps"); *list != ']' && list[1] != ']' && count < 64; count++) {
        char *end;
        used[count] = qps[strtoul(list + 1, &end, 10)];
        list = end;
    }
    for (bool is_done = false; !is_done && now_millis() <= wait_end;) {
        is_done = true;
        for (int i = 0; i < count; i++) {
            struct tally *tally = &tallies[i];
            bool is_posting = now_millis() < post_end && !tally->has_failed;
            int failed = is_posting ? fill(line, used[i], tally) : 0;
            if (failed) {
                refuse("a post under load: %d", failed);
                return;
            }
            take(used[i], tally);
            bool are_recvs_done = !tally->has_failed || tally->recvs == tally->recvs_done;
            is_done &= !is_posting && tally->sends == tally->sends_done && are_recvs_done;
        }
    }
    printf("{\"ok\":[");
    for (int i = 0; i < count; i++) {
        printf("%s{\"sends\":%lu,\"recvs\":%lu", i ? "," : "", tallies[i].sends, tallies[i].recvs);
        print_ended("sends_ended", tallies[i].sends_ended);
        print_ended("recvs_ended", tallies[i].recvs_ended);
        printf("}");
    }
    printf("]}\n");
}

static void post_a_recv(const char *line)
{
    post(line, false);
}

static void post_a_send(const char *line)
{
    post(line, true);
}

static void obey(const char *line)
{
    static const struct { const char *name; void (*run)(const char *); } commands[] = { { "mr\"", make_mr },
        { "qp\"", make_qp }, { "connect\"", connect_qp }, { "write\"", write_bytes }, { "read\"", read_bytes },
        { "post_recv\"", post_a_recv }, { "post_send\"", post_a_send }, { "poll\"", poll }, { "load\"", load },
        { "destroy\"", destroy_qp } };
    const char *name = value_of(line, "do") + 1;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strncmp(name, commands[i].name, strlen(commands[i].name))) {
            commands[i].run(line);
            return;
        }
    refuse("unknown command");
}

int main(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state = (uint64_t)now.tv_nsec | 1;
    int devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    context = list && devices ? ibv_open_device(list[devices - 1]) : NULL;
    pd = context ? ibv_alloc_pd(context) : NULL;
    if (!pd) {
        fprintf(stderr, "no device: %d\n", errno);
        return 2;
    }
    ibv_free_device_list(list);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        obey(line);
        fflush(stdout);
    }
    /* As programs do, in the order in which the objects permit it. */
    int failed = 0;
    for (int i = 0; i < qp_count; i++)
        failed |= qps[i] ? destroy(qps[i]) : 0;
    failed |= mr ? ibv_dereg_mr(mr) : 0;
    failed |= ibv_dealloc_pd(pd);
    failed |= ibv_close_device(context);
    free(line);
    return failed ? 1 : 0;
}
