// SPDX-License-Identifier: GPL-2.0
/*
 * Wrappers for C constructs that Rust cannot use: static inline functions, macros, and fields of
 * structs without a Rust type. One line each, without branches, loops or logic. Sorted
 * alphabetically in each section.
 *
 * If the kernel has CONFIG_RUST_INLINE_HELPERS, this file is compiled to bitcode and linked into
 * each Rust object, so that its functions are inlined into their Rust callers. Otherwise it is an
 * ordinary object. It must therefore not contain static data.
 *
 * bindgen also reads this file. The SHIM macro is needed because bindgen ignores inline functions.
 */

#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/cred.h>
#include <linux/idr.h>
#include <linux/if_vlan.h>
#include <linux/igmp.h>
#include <linux/inetdevice.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/nsproxy.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/skbuff.h>
#include <linux/spinlock.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <net/dst.h>
#include <net/gro.h>
#include <net/ip.h>
#include <net/ip6_fib.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/l3mdev.h>
#include <net/net_namespace.h>
#include <net/route.h>
#include <net/rtnetlink.h>
#include <net/sch_generic.h>
#include <net/sock.h>
#include <net/udp_tunnel.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>
#ifdef CONFIG_X86
#include <asm/fpu/api.h>
#endif

#include "data.h"

#ifdef __BINDGEN__
#define SHIM
#else
#define SHIM __always_inline
#endif

/* Contexts, CPUs, time. */

SHIM void __percpu *shim_alloc_percpu(size_t size, size_t align, gfp_t gfp)
{
	return __alloc_percpu_gfp(size, align, gfp);
}

SHIM struct workqueue_struct *shim_alloc_workqueue(const char *name, unsigned int flags)
{
	return alloc_workqueue("%s", flags, 0, name);
}

SHIM bool shim_in_softirq(void)
{
	return in_softirq();
}

SHIM bool shim_in_serving_softirq(void)
{
	return in_serving_softirq();
}

SHIM u64 *shim_bursts_of_cpu(unsigned int cpu)
{
	return per_cpu_ptr(&rdma_bursts, cpu);
}

SHIM u64 *shim_bursts_of_this_cpu(void)
{
	return this_cpu_ptr(&rdma_bursts);
}

SHIM void shim_cond_resched(void)
{
	cond_resched_tasks_rcu_qs();
}

SHIM bool shim_cpu_possible(unsigned int cpu)
{
	return cpu_possible(cpu);
}

SHIM void shim_ida_init(struct ida *ida)
{
	ida_init(ida);
}

SHIM void shim_interrupt_task(struct task_struct *task)
{
	set_tsk_thread_flag(task, TIF_NOTIFY_SIGNAL); wake_up_process(task);
}

SHIM bool shim_irqs_disabled(void)
{
	return irqs_disabled();
}

SHIM void shim_local_bh_disable(void)
{
	local_bh_disable();
}

SHIM void shim_local_bh_enable(void)
{
	local_bh_enable();
}

SHIM unsigned int shim_num_possible_cpus(void)
{
	return num_possible_cpus();
}

SHIM void *shim_per_cpu_ptr(void __percpu *memory, unsigned int cpu)
{
	return per_cpu_ptr(memory, cpu);
}

SHIM unsigned long shim_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags; spin_lock_irqsave(lock, flags); return flags;
}

SHIM void shim_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

SHIM void shim_wait_for_bits(u32 *variable, u32 bits)
{
	wait_var_event(variable, smp_load_acquire(variable) & bits);
}

SHIM void shim_wait_for_value(size_t *variable, size_t value)
{
	wait_var_event(variable, smp_load_acquire(variable) == value);
}

SHIM bool shim_in_softirq_level(void)
{
	return softirq_count() && !in_hardirq() && !in_nmi();
}

SHIM void shim_set_current_running(void)
{
	__set_current_state(TASK_RUNNING);
}

SHIM void shim_set_notify_signal(void)
{
	set_thread_flag(TIF_NOTIFY_SIGNAL);
}

SHIM u64 shim_this_cpu_read_u64(u64 __percpu *counter)
{
	return this_cpu_read(*counter);
}

SHIM void shim_this_cpu_add_u64(u64 __percpu *counter, u64 n)
{
	this_cpu_add(*counter, n);
}

/* Memory of programs. */

SHIM bool shim_is_user_range(unsigned long start, unsigned long len)
{
	return len <= current->mm->task_size && start <= current->mm->task_size - len;
}

#ifdef CONFIG_MMU_NOTIFIER
SHIM bool shim_mmu_interval_read_retry(struct mmu_interval_notifier *notifier, unsigned long seq)
{
	return mmu_interval_read_retry(notifier, seq);
}

SHIM void shim_mmu_interval_set_seq(struct mmu_interval_notifier *notifier, unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
}

SHIM bool shim_mmu_notifier_range_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}
#endif

SHIM void *shim_page_address(const struct page *page)
{
	return page_address(page);
}

SHIM int shim_page_count(const struct page *page)
{
	return page_count(page);
}

SHIM void shim_put_page(struct page *page)
{
	put_page(page);
}

SHIM void *shim_xa_find_present(struct xarray *xa, unsigned long *index, unsigned long last)
{
	return xa_find(xa, index, last, XA_PRESENT);
}

SHIM void shim_xa_init_accounted(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_ACCOUNT);
}

SHIM int shim_xa_reserve(struct xarray *xa, unsigned long index)
{
	return xa_reserve(xa, index, GFP_KERNEL);
}

SHIM void shim_xa_release(struct xarray *xa, unsigned long index)
{
	xa_release(xa, index);
}

/* Netlink messages. */

SHIM struct nlattr *shim_nla_nest_start(struct sk_buff *message, int kind)
{
	return nla_nest_start_noflag(message, kind);
}

SHIM void shim_nla_nest_end(struct sk_buff *message, struct nlattr *nest)
{
	nla_nest_end(message, nest);
}

SHIM void shim_nla_nest_cancel(struct sk_buff *message, struct nlattr *nest)
{
	nla_nest_cancel(message, nest);
}

/* struct net, struct net_device. */

SHIM void shim_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

SHIM struct net *shim_dev_net_rcu(const struct net_device *dev)
{
	return dev_net_rcu(dev);
}

SHIM u32 shim_ipv4_address_generation(const struct net *net)
{
	return atomic_read_acquire(&net->ipv4.dev_addr_genid);
}

SHIM u32 shim_ipv6_address_generation(const struct net *net)
{
	return atomic_read_acquire(&net->ipv6.dev_addr_genid);
}

SHIM void shim_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

SHIM struct in_device *shim___in_dev_get_rtnl(const struct net_device *dev)
{
	return __in_dev_get_rtnl(dev);
}

SHIM void shim_ip_mc_dec_group(struct in_device *in_dev, __be32 group)
{
	ip_mc_dec_group(in_dev, group);
}

SHIM bool shim_is_vlan_dev(const struct net_device *dev)
{
	return is_vlan_dev(dev);
}

SHIM void shim_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

SHIM bool shim_take_notify_resume(void)
{
	return test_and_clear_thread_flag(TIF_NOTIFY_RESUME);
}

SHIM struct net *shim_maybe_get_net(struct net *net)
{
	return maybe_get_net(net);
}

SHIM void shim_put_net(struct net *net)
{
	put_net(net);
}

SHIM void *shim_current_nsproxy(void)
{
	return current->nsproxy;
}

SHIM int shim_l3mdev_master_ifindex_rcu(const struct net_device *dev)
{
	return l3mdev_master_ifindex_rcu(dev);
}

SHIM bool shim_netif_is_l3_master(const struct net_device *dev)
{
	return netif_is_l3_master(dev);
}

SHIM struct net *shim_nsproxy_net(const void *nsproxy)
{
	return ((const struct nsproxy *)nsproxy)->net_ns;
}

SHIM u64 shim_net_cookie(const struct net *net)
{
	return net->net_cookie;
}

SHIM struct user_namespace *shim_net_user_ns(const struct net *net)
{
	return net->user_ns;
}

SHIM const unsigned char *shim_netdev_addr(const struct net_device *dev)
{
	return dev->dev_addr;
}

SHIM bool shim_netdev_has_queue(struct net_device *dev)
{
	return rcu_dereference_all(netdev_get_tx_queue(dev, 0)->qdisc)->enqueue;
}

SHIM unsigned int shim_netdev_flags(const struct net_device *dev)
{
	return READ_ONCE(dev->flags);
}

SHIM int shim_netdev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

SHIM unsigned int shim_netdev_mtu(const struct net_device *dev)
{
	return READ_ONCE(dev->mtu);
}

SHIM const char *shim_netdev_name(const struct net_device *dev)
{
	return dev->name;
}

SHIM struct net_device *shim_netdev_notifier_dev(void *info)
{
	return netdev_notifier_info_to_dev(info);
}

SHIM int shim_dql_avail(const struct dql *dql)
{
	return dql_avail(dql);
}

SHIM void shim_dql_init(struct dql *dql)
{
	dql_init(dql, HZ);
}

SHIM void shim_dql_queued(struct dql *dql, unsigned int count)
{
	dql_queued(dql, count);
}

typedef struct net_device *(*shim_peer_op)(struct net_device *dev);

SHIM shim_peer_op shim_netdev_peer_op(const struct net_device *dev)
{
	return dev->netdev_ops->ndo_get_peer_dev;
}

SHIM bool shim_netdev_has_lower(const struct net_device *dev)
{
	return !list_empty(&dev->adj_list.lower);
}

SHIM bool shim_netdev_has_rx_handler(const struct net_device *dev)
{
	return rcu_access_pointer(dev->rx_handler);
}

SHIM bool shim_netif_is_lag_port(const struct net_device *dev)
{
	return netif_is_lag_port(dev);
}

SHIM bool shim_netdev_has_generic_xdp(const struct net_device *dev)
{
	return rcu_access_pointer(dev->xdp_prog);
}

#ifdef CONFIG_NET_XGRESS
SHIM bool shim_netdev_has_tc_ingress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->tcx_ingress);
}

SHIM bool shim_netdev_has_tc_egress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->tcx_egress);
}
#endif

#ifdef CONFIG_NETFILTER_INGRESS
SHIM bool shim_netdev_has_nf_ingress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->nf_hooks_ingress);
}
#endif

#ifdef CONFIG_NETFILTER_EGRESS
SHIM bool shim_netdev_has_nf_egress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->nf_hooks_egress);
}
#endif

SHIM unsigned short shim_netdev_type(const struct net_device *dev)
{
	return dev->type;
}

SHIM bool shim_netdev_can_segment_udp(const struct net_device *dev)
{
	return !(~dev->features & (NETIF_F_GSO_UDP_L4 | NETIF_F_GSO_UDP_TUNNEL | NETIF_F_SG | NETIF_F_HW_CSUM));
}

SHIM const struct rtnl_link_ops *shim_netdev_link_ops(const struct net_device *dev)
{
	return dev->rtnl_link_ops;
}

SHIM const char *shim_link_ops_kind(const struct rtnl_link_ops *ops)
{
	return ops->kind;
}

SHIM bool shim_netif_oper_up(const struct net_device *dev)
{
	return netif_oper_up(dev);
}

SHIM u16 shim_vlan_dev_vlan_id(const struct net_device *dev)
{
	return vlan_dev_vlan_id(dev);
}

/* Routes. */

SHIM struct dst_entry *shim_dst_check(struct dst_entry *dst, u32 cookie)
{
	return dst_check(dst, cookie);
}

SHIM void shim_dst_hold(struct dst_entry *dst)
{
	dst_hold(dst);
}

SHIM struct net_device *shim_dst_dev_rcu(const struct dst_entry *dst)
{
	return dst_dev_rcu(dst);
}

SHIM int shim_dst_error(const struct dst_entry *dst)
{
	return dst->error;
}

SHIM void shim_flowi4_init(struct flowi4 *fl4, int oif, u8 tos, __be32 saddr, __be32 daddr,
			   __be16 sport, __be16 dport)
{
	flowi4_init_output(fl4, oif, 0, tos, RT_SCOPE_UNIVERSE, IPPROTO_UDP, 0, daddr, saddr,
			   dport, sport, GLOBAL_ROOT_UID);
}

SHIM __be32 shim_ip6_make_flowinfo(unsigned int tclass)
{
	return ip6_make_flowinfo(tclass, 0);
}

SHIM unsigned int shim_ll_reserved_space(const struct net_device *dev)
{
	return LL_RESERVED_SPACE(dev);
}

SHIM u32 shim_rt6_get_cookie(struct dst_entry *dst)
{
	return rt6_get_cookie(dst_rt6_info(dst));
}

SHIM struct dst_entry *shim_rtable_dst(struct rtable *rt)
{
	return &rt->dst;
}

/* Socket buffers. */

SHIM unsigned int shim_skb_head_align(unsigned int size)
{
	return SKB_HEAD_ALIGN(size);
}

SHIM bool shim_skb_is_of_this_cpu(const struct sk_buff *skb)
{
	return skb->alloc_cpu == raw_smp_processor_id();
}

SHIM struct sk_buff *shim_alloc_skb(unsigned int size, gfp_t gfp)
{
	return alloc_skb(size, gfp);
}

SHIM const unsigned char *shim_eth_source(const struct sk_buff *skb)
{
	return eth_hdr(skb)->h_source;
}

SHIM unsigned int shim_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

SHIM int shim_skb_tailroom(const struct sk_buff *skb)
{
	return skb_tailroom(skb);
}

SHIM unsigned char *shim_skb_network_header(const struct sk_buff *skb)
{
	return skb_network_header(skb);
}

SHIM unsigned char *shim_skb_transport_header(const struct sk_buff *skb)
{
	return skb_transport_header(skb);
}

SHIM bool shim_skb_has_eth_header(const struct sk_buff *skb)
{
	return skb_mac_header_was_set(skb) && skb_mac_header_len(skb) >= ETH_HLEN;
}

SHIM __be16 shim_skb_protocol(const struct sk_buff *skb)
{
	return skb->protocol;
}

SHIM struct net_device *shim_skb_dev(const struct sk_buff *skb)
{
	return skb->dev;
}

SHIM int shim_skb_iif(const struct sk_buff *skb)
{
	return skb->skb_iif;
}

SHIM void *shim___skb_pull(struct sk_buff *skb, unsigned int len)
{
	return __skb_pull(skb, len);
}

SHIM void *shim___skb_push(struct sk_buff *skb, unsigned int len)
{
	return __skb_push(skb, len);
}

SHIM void *shim___skb_put(struct sk_buff *skb, unsigned int len)
{
	return __skb_put(skb, len);
}

SHIM void shim_skb_reserve(struct sk_buff *skb, int len)
{
	skb_reserve(skb, len);
}

SHIM void shim_skb_reset_inner_headers(struct sk_buff *skb)
{
	skb_reset_inner_headers(skb);
}

SHIM void shim_skb_reset_inner_mac_header(struct sk_buff *skb)
{
	skb_reset_inner_mac_header(skb);
}

SHIM void shim_skb_dst_set(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set(skb, dst_clone(dst));
}

SHIM u32 shim_skb_dst_mtu(const struct sk_buff *skb)
{
	return dst_mtu(skb_dst(skb));
}

SHIM struct net *shim_skb_dst_dev_net_rcu(const struct sk_buff *skb)
{
	return skb_dst_dev_net_rcu(skb);
}

SHIM void shim_skb_set_protocol(struct sk_buff *skb, __be16 protocol)
{
	skb->protocol = protocol;
}

SHIM struct skb_shared_info *shim_skb_shinfo(const struct sk_buff *skb)
{
	return skb_shinfo(skb);
}

/* Without tracepoints it is a static inline. */
SHIM void shim_consume_skb(struct sk_buff *skb)
{
	consume_skb(skb);
}

SHIM void shim_skb_dst_drop(struct sk_buff *skb)
{
	skb_dst_drop(skb);
}

SHIM struct sk_buff *shim_skb_get(struct sk_buff *skb)
{
	return skb_get(skb);
}

SHIM void shim_skb_orphan(struct sk_buff *skb)
{
	skb_orphan(skb);
}

SHIM void shim_nf_reset_ct(struct sk_buff *skb)
{
	nf_reset_ct(skb);
}

SHIM void shim_skb_ext_reset(struct sk_buff *skb)
{
	skb_ext_reset(skb);
}

SHIM bool shim_skb_has_dst(const struct sk_buff *skb)
{
	return skb_dst(skb);
}

SHIM bool shim_skb_has_destructor(const struct sk_buff *skb)
{
	return skb->destructor;
}

SHIM void shim_skb_set_destructor(struct sk_buff *skb, void (*destructor)(struct sk_buff *skb))
{
	skb->destructor = destructor;
}

SHIM u8 shim_skb_nr_frags(const struct sk_buff *skb)
{
	return skb_shinfo(skb)->nr_frags;
}

SHIM void *shim_skb_frag_address_safe(const struct sk_buff *skb, int i)
{
	return skb_frag_address_safe(&skb_shinfo(skb)->frags[i]);
}

SHIM unsigned int shim_skb_frag_size(const struct sk_buff *skb, int i)
{
	return skb_frag_size(&skb_shinfo(skb)->frags[i]);
}

SHIM unsigned int shim_skb_pagelen(const struct sk_buff *skb)
{
	return skb_pagelen(skb);
}

/* GRO. */

SHIM unsigned int shim_skb_gro_offset(const struct sk_buff *skb)
{
	return skb_gro_offset(skb);
}

SHIM u16 shim_skb_gro_network_offset(const struct sk_buff *skb)
{
	return NAPI_GRO_CB(skb)->network_offset;
}

SHIM unsigned int shim_skb_gro_len(const struct sk_buff *skb)
{
	return skb_gro_len(skb);
}

SHIM void *shim_skb_gro_header(struct sk_buff *skb, unsigned int hlen, unsigned int offset)
{
	return skb_gro_header(skb, hlen, offset);
}

SHIM const void *shim_skb_header_pointer(const struct sk_buff *skb, int offset, int len,
					 void *buffer)
{
	return skb_header_pointer(skb, offset, len, buffer);
}

SHIM u16 shim_skb_gro_flush(const struct sk_buff *skb)
{
	return NAPI_GRO_CB(skb)->flush;
}

SHIM void shim_skb_gro_set_flush(struct sk_buff *skb)
{
	NAPI_GRO_CB(skb)->flush = 1;
}

SHIM bool shim_skb_gro_same_flow(const struct sk_buff *skb)
{
	return NAPI_GRO_CB(skb)->same_flow;
}

SHIM void shim_skb_gro_set_same_flow(struct sk_buff *skb, bool same_flow)
{
	NAPI_GRO_CB(skb)->same_flow = same_flow;
}

SHIM u16 shim_skb_gro_count(const struct sk_buff *skb)
{
	return NAPI_GRO_CB(skb)->count;
}

SHIM void shim_skb_gro_set_count(struct sk_buff *skb, u16 count)
{
	NAPI_GRO_CB(skb)->count = count;
}

SHIM struct sk_buff *shim_skb_gro_last(const struct sk_buff *skb)
{
	return NAPI_GRO_CB(skb)->last;
}

SHIM void shim_skb_gro_set_last(struct sk_buff *skb, struct sk_buff *last)
{
	NAPI_GRO_CB(skb)->last = last;
}

SHIM bool shim_skb_is_encapsulated(const struct sk_buff *skb)
{
	return skb->encapsulation;
}

SHIM void shim_skb_set_checksum_unnecessary(struct sk_buff *skb)
{
	skb->ip_summed = CHECKSUM_UNNECESSARY;
}

SHIM void shim_skb_set_priority(struct sk_buff *skb, u32 priority)
{
	skb->priority = priority;
}

SHIM u8 shim_skb_ip_summed(const struct sk_buff *skb)
{
	return skb->ip_summed;
}

SHIM bool shim_skb_is_for_host(const struct sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST;
}

SHIM bool shim_pskb_may_pull(struct sk_buff *skb, unsigned int len)
{
	return pskb_may_pull(skb, len);
}

SHIM void shim_skb_set_transport_header(struct sk_buff *skb, int offset)
{
	skb_set_transport_header(skb, offset);
}

SHIM void shim_skb_set_network_header(struct sk_buff *skb, int offset)
{
	skb_set_network_header(skb, offset);
}

SHIM void shim_skb_clear_encapsulation(struct sk_buff *skb)
{
	skb->encapsulation = 0;
}

SHIM void shim___skb_incr_checksum_unnecessary(struct sk_buff *skb)
{
	__skb_incr_checksum_unnecessary(skb);
}

/* Packets of sockets. */

SHIM void shim_nf_local_out_init(struct nf_hook_ops *ops, nf_hookfn *hook, void *priv)
{
	*ops = (struct nf_hook_ops){ .hook = hook, .priv = priv, .pf = NFPROTO_INET,
				     .hooknum = NF_INET_LOCAL_OUT, .priority = NF_IP_PRI_LAST };
}

SHIM void shim_nf_forwarded_init(struct nf_hook_ops *ops, nf_hookfn *hook, void *priv)
{
	*ops = (struct nf_hook_ops){ .hook = hook, .priv = priv, .pf = NFPROTO_INET,
				     .hooknum = NF_INET_POST_ROUTING,
				     .priority = NF_IP_PRI_CONNTRACK_CONFIRM - 1 };
}

SHIM void shim_sk_callback_lock(struct sock *sk)
{
	read_lock_bh(&sk->sk_callback_lock);
}

SHIM void shim_sk_callback_unlock(struct sock *sk)
{
	read_unlock_bh(&sk->sk_callback_lock);
}

SHIM bool shim_sk_fullsock(const struct sock *sk)
{
	return sk_fullsock(sk);
}

SHIM u16 shim_sk_protocol(const struct sock *sk)
{
	return sk->sk_protocol;
}

SHIM struct socket *shim_sk_socket(const struct sock *sk)
{
	return READ_ONCE(sk->sk_socket);
}

SHIM uid_t shim_sk_uid(const struct sock *sk)
{
	return from_kuid_munged(&init_user_ns, sk_uid(sk));
}

SHIM int shim_skb_transport_offset(const struct sk_buff *skb)
{
	return skb_transport_offset(skb);
}

/* UDP tunnel sockets. */

SHIM void shim_sk_owner_clear(struct sock *sk)
{
	sk_owner_clear(sk);
}

SHIM void shim_sk_owner_put(struct sock *sk)
{
	sk_owner_put(sk);
}

SHIM void shim_sock_lock_init_class_and_name(struct sock *sk, const char *slock_name,
					     struct lock_class_key *slock_key,
					     const char *name, struct lock_class_key *key)
{
	sock_lock_init_class_and_name(sk, slock_name, slock_key, name, key);
}

SHIM void shim_udp_accept_gso(struct sock *sk)
{
	udp_set_bit(ACCEPT_L4, sk);
	udp_set_bit(ACCEPT_FRAGLIST, sk);
}

SHIM void *shim_sk_user_data_rcu(const struct sock *sk)
{
	return rcu_dereference_sk_user_data(sk);
}

SHIM int shim_ip6_sock_set_v6only(struct sock *sk)
{
	return ip6_sock_set_v6only(sk);
}

SHIM int shim_kernel_bind(struct socket *sock, void *address, int len)
{
	return kernel_bind(sock, address, len);
}

SHIM const struct cred *shim_override_kernel_creds(void)
{
	return override_creds(kernel_cred());
}

SHIM void shim_revert_creds(const struct cred *old)
{
	revert_creds(old);
}

SHIM int shim_sk_bound_dev_if(const struct sock *sk)
{
	return READ_ONCE(sk->sk_bound_dev_if);
}

SHIM void shim_sk_set_reuseport(struct sock *sk, bool on)
{
	sk->sk_reuseport = on;
}

SHIM int shim_inet_sdif(const struct sk_buff *skb)
{
	return inet_sdif(skb);
}

SHIM int shim_inet6_sdif(const struct sk_buff *skb)
{
	return inet6_sdif(skb);
}

SHIM void shim_udp_accept_no_check6(struct sock *sk)
{
	udp_set_no_check6_rx(sk, true);
}

/* RDMA. */

SHIM u32 shim_attrs_dm_handle(struct uverbs_attr_bundle *attrs)
{
	return uverbs_attr_get(attrs, UVERBS_ATTR_ALLOC_DM_HANDLE)->obj_attr.uobject->id;
}

SHIM struct ib_udata *shim_attrs_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

SHIM struct ib_ucontext *shim_udata_context(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata)->context;
}

SHIM bool shim_udata_has_attr(struct ib_udata *udata, unsigned int id)
{
	return uverbs_attr_is_valid(rdma_udata_to_uverbs_attr_bundle(udata), id);
}

SHIM u16 shim_get_udp_sport(u32 flow_label, u32 local_qpn, u32 remote_qpn)
{
	return rdma_get_udp_sport(flow_label, local_qpn, remote_qpn);
}

SHIM struct page *shim_virt_to_page(const void *address)
{
	return virt_to_page(address);
}

SHIM void *shim_vmap(struct page **pages, unsigned int count)
{
	return vmap(pages, count, VM_MAP, PAGE_KERNEL);
}
