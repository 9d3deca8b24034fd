/* Unregisters a handler of interrupts that the virtio-user driver leaves registered when a port closes.
 *
 * The driver registers the handler when a port with interrupts is configured, and unregisters it when the port stops:
 * not at all if the port was never started. The handler would run for memory that is freed, and EAL's interrupt thread
 * ends the process when it finds the descriptor closed.
 *
 * build.rs redirects the driver's call that frees the handle, before the descriptor is closed, to the function here.
 * Where DPDK is linked as shared libraries the driver cannot be redirected, and none of this has an effect. */
#include <errno.h>

#include <rte_interrupts.h>
#include <rte_pause.h>

/* The driver's handler, which exists in a static build only. */
extern void virtio_interrupt_handler(void *port) __attribute__((weak));

void shim_virtio_instance_free(struct rte_intr_handle *handle);

void shim_virtio_instance_free(struct rte_intr_handle *handle)
{
	void *any_port = (void *)-1;

	/* EAGAIN while the handler runs. */
	while (handle != NULL &&
	       rte_intr_callback_unregister(handle, virtio_interrupt_handler, any_port) == -EAGAIN)
		rte_pause();
	rte_intr_instance_free(handle);
}
