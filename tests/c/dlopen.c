/* A program that is not linked with libibverbs: functions by dlopen, dlsym and dlvsym only, as NCCL does. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE 4096
#define TIMEOUT_SECONDS 20

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, dlerror());                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* Of the library dlopen_other.c, with which this program is linked. */
void *find_next_of_other(void);

static uint8_t memory[2 * SIZE];

static void *function(void *verbs, const char *name)
{
    void *found = dlvsym(verbs, name, "IBVERBS_1.1");
    CHECK(found && found == dlsym(verbs, name));
    return found;
}

static void connect_to_itself(void *verbs, struct ibv_context *context, struct ibv_qp *qp)
{
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int) = function(verbs, "ibv_modify_qp");
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *) = function(verbs, "ibv_query_gid");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(!modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
                                 .max_dest_rd_atomic = 1, .ah_attr = { .is_global = 1, .port_num = 1 } };
    attr.ah_attr.grh.hop_limit = 64;
    CHECK(!query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                 .max_rd_atomic = 1 };
    CHECK(!modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                    IBV_QP_MAX_QP_RD_ATOMIC));
}

static void send_to_itself(void *verbs, struct ibv_context *context)
{
    struct ibv_pd *(*alloc_pd)(struct ibv_context *) = function(verbs, "ibv_alloc_pd");
    struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int) = function(verbs, "ibv_reg_mr");
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
        function(verbs, "ibv_create_cq");
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *) = function(verbs, "ibv_create_qp");
    struct ibv_pd *pd = alloc_pd(context);
    CHECK(pd);
    struct ibv_mr *mr = reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = create_cq(context, 16, NULL, NULL, 0);
    CHECK(mr && cq);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                     .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
                                              .max_recv_sge = 1 } };
    struct ibv_qp *qp = create_qp(pd, &init);
    CHECK(qp);
    connect_to_itself(verbs, context, qp);
    memset(memory, 0x5a, SIZE);
    struct ibv_sge from = { (uintptr_t)memory, SIZE, mr->lkey }, to = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
    struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
    struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
                                .send_flags = IBV_SEND_SIGNALED }, *bad_send;
    CHECK(!ibv_post_recv(qp, &receive, &bad_receive) && !ibv_post_send(qp, &send, &bad_send));
    struct ibv_wc wc;
    time_t end = time(NULL) + TIMEOUT_SECONDS;
    for (int completed = 0; completed < 2;) {
        CHECK(time(NULL) < end);
        int polled = ibv_poll_cq(cq, 1, &wc);
        CHECK(polled == 0 || (polled == 1 && wc.status == IBV_WC_SUCCESS));
        completed += polled;
    }
    CHECK(!memcmp(memory, memory + SIZE, SIZE));
}

int main(void)
{
    /* Names that are not libibverbs: found by this program's RUNPATH, and not found. */
    CHECK(dlopen("libdlopen_plugin.so", RTLD_NOW));
    CHECK(!dlopen("libroce_no_such_library.so", RTLD_NOW) && strstr(dlerror(), "libroce_no_such_library.so"));
    /* The caller's own definition is not the next one. */
    CHECK(!find_next_of_other());
    CHECK(!dlvsym(RTLD_DEFAULT, "getppid", "NONE_1") && dlvsym(RTLD_DEFAULT, "other", "OTHER_1"));

    void *verbs = dlopen("libibverbs.so.1", RTLD_NOW);
    CHECK(verbs);
    /* A function without an object is that of libibverbs. */
    const char *(*status_str)(enum ibv_wc_status) = dlsym(verbs, "ibv_wc_status_str");
    CHECK(status_str && !strcmp(status_str(IBV_WC_SUCCESS), "success"));
    struct ibv_device **(*get_device_list)(int *) = function(verbs, "ibv_get_device_list");
    struct ibv_context *(*open_device)(struct ibv_device *) = function(verbs, "ibv_open_device");
    const char *(*get_device_name)(struct ibv_device *) = dlsym(verbs, "ibv_get_device_name");
    int count = 0;
    struct ibv_device **list = get_device_list(&count);
    CHECK(list && count >= 1 && get_device_name);
    CHECK(!strcmp(get_device_name(list[count - 1]), "roce0"));
    struct ibv_context *context = open_device(list[count - 1]);
    CHECK(context);
    send_to_itself(verbs, context);
    CHECK(!dlclose(verbs));
    puts("all checks passed");
    return 0;
}
