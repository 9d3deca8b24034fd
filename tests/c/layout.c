/* The binary interface that programs are compiled against: sizes and offsets which are equal in the headers of
 * rdma-core 44 to 65. The compiler checks them in the installed headers, from which the library's types are generated.
 * The program then calls the library's functions at these offsets, as a program does that was compiled against any of
 * these headers. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), "size of " #type)
#define AT(type, field, bytes) _Static_assert(offsetof(struct type, field) == (bytes), "offset of " #type "." #field)

SIZE(ibv_wc, 48);
SIZE(ibv_send_wr, 128);
SIZE(ibv_recv_wr, 32);
SIZE(ibv_sge, 16);
SIZE(ibv_qp_attr, 144);
SIZE(ibv_qp_init_attr, 64);
SIZE(ibv_qp_init_attr_ex, 136);
SIZE(ibv_cq_init_attr_ex, 56);
SIZE(ibv_srq_init_attr, 24);
SIZE(ibv_ah_attr, 32);
SIZE(ibv_device_attr, 232);
SIZE(ibv_device_attr_ex, 400);
SIZE(ibv_device, 664);
SIZE(ibv_context, 328);
SIZE(ibv_pd, 16);
SIZE(ibv_mr, 48);
SIZE(ibv_cq, 128);
SIZE(ibv_cq_ex, 288);
SIZE(ibv_qp, 160);
SIZE(ibv_srq, 128);
SIZE(ibv_ah, 24);
SIZE(ibv_comp_channel, 16);
SIZE(ibv_async_event, 16);
SIZE(ibv_gid_entry, 32);

AT(ibv_context, ops, 8);
AT(ibv_context, async_fd, 268);
AT(ibv_context, num_comp_vectors, 272);
AT(ibv_context, abi_compat, 320);
AT(ibv_context_ops, poll_cq, 88);
AT(ibv_context_ops, req_notify_cq, 96);
AT(ibv_context_ops, post_srq_recv, 160);
AT(ibv_context_ops, post_send, 200);
AT(ibv_context_ops, post_recv, 208);
AT(ibv_qp, qp_num, 52);
AT(ibv_qp, state, 56);
AT(ibv_qp, qp_type, 60);
AT(ibv_mr, lkey, 36);
AT(ibv_mr, rkey, 40);
AT(ibv_qp_ex, wr_id, 168);
AT(ibv_qp_ex, wr_send, 240);
AT(ibv_qp_ex, wr_set_ud_addr, 272);
AT(ibv_qp_ex, wr_set_sge_list, 312);
AT(ibv_qp_ex, wr_start, 320);
AT(ibv_qp_ex, wr_complete, 328);
AT(ibv_qp_ex, wr_abort, 336);
AT(ibv_cq_ex, status, 132);
AT(ibv_cq_ex, start_poll, 144);
AT(ibv_cq_ex, end_poll, 160);
AT(ibv_cq_ex, read_opcode, 168);
AT(ibv_cq_ex, read_src_qp, 208);
AT(ibv_cq_ex, read_completion_ts, 248);

/* A verbs_context grows at its front: the fields below keep their distance to the field `context`, which is the last. */
#define BEFORE_CONTEXT(field, bytes)                                                                                    \
    _Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, field) == (bytes),          \
                   "distance of verbs_context." #field)

#define SZ_BEFORE_CONTEXT 8
#define CREATE_QP_EX_BEFORE_CONTEXT 56
#define QUERY_DEVICE_EX_BEFORE_CONTEXT 104
#define CREATE_CQ_EX_BEFORE_CONTEXT 120
#define QUERY_PORT_BEFORE_CONTEXT 320
BEFORE_CONTEXT(sz, SZ_BEFORE_CONTEXT);
BEFORE_CONTEXT(create_qp_ex, CREATE_QP_EX_BEFORE_CONTEXT);
BEFORE_CONTEXT(query_device_ex, QUERY_DEVICE_EX_BEFORE_CONTEXT);
BEFORE_CONTEXT(create_cq_ex, CREATE_CQ_EX_BEFORE_CONTEXT);
BEFORE_CONTEXT(query_port, QUERY_PORT_BEFORE_CONTEXT);

/* Sizes of struct verbs_context and struct ibv_port_attr of rdma-core 44, and of the latter of rdma-core 65. */
#define VERBS_CONTEXT_44_BYTES 648
#define PORT_ATTR_44_BYTES 52
#define PORT_ATTR_65_BYTES 56

/* The value of type `type` that lies `bytes` before `context`. */
#define VALUE_BEFORE(context, bytes, type) (*(type *)((char *)(context) - (bytes)))

typedef int query_port(struct ibv_context *, uint8_t, void *, size_t);

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    CHECK(context->abi_compat == (void *)UINTPTR_MAX);
    CHECK(VALUE_BEFORE(context, SZ_BEFORE_CONTEXT, size_t) >= VERBS_CONTEXT_44_BYTES);
    CHECK(VALUE_BEFORE(context, CREATE_QP_EX_BEFORE_CONTEXT, void *));
    CHECK(VALUE_BEFORE(context, QUERY_DEVICE_EX_BEFORE_CONTEXT, void *));
    CHECK(VALUE_BEFORE(context, CREATE_CQ_EX_BEFORE_CONTEXT, void *));
    query_port *query = VALUE_BEFORE(context, QUERY_PORT_BEFORE_CONTEXT, query_port *);
    unsigned char old[PORT_ATTR_65_BYTES], new[PORT_ATTR_65_BYTES];
    memset(old, 0xff, sizeof old);
    memset(new, 0xff, sizeof new);
    CHECK(!query(context, 1, old, PORT_ATTR_44_BYTES));
    CHECK(!query(context, 1, new, PORT_ATTR_65_BYTES));
    CHECK(!memcmp(old, new, PORT_ATTR_44_BYTES));
    for (size_t byte = PORT_ATTR_44_BYTES; byte < PORT_ATTR_65_BYTES; byte++)
        CHECK(old[byte] == 0xff && new[byte] == 0);
    CHECK(!ibv_close_device(context));
    ibv_free_device_list(list);
    puts("all checks passed");
    return 0;
}
