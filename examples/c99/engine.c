/* Decoding as an inference engine does it: planned once for the largest call, then run for every token with the
 * engine's own workspace and threads. Between plan and end nothing is allocated. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { B = 4, CAPACITY = 256, H = 8, Hk = 2, D = 64, WORKERS = 2 };

/* ---- The engine's threads: one call at a time. */

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t more, all_done;
  pthread_t threads[WORKERS];
  void (*task)(void *context, int64_t i);
  void *task_context;
  int64_t next, count, unfinished;
  int stop;
} threads;

/* Draws tasks until none is left. The lock is held on entry and on return. */
static void draw_tasks(threads *t) {
  while (t->next < t->count) {
    const int64_t i = t->next++;
    pthread_mutex_unlock(&t->lock);
    t->task(t->task_context, i);
    pthread_mutex_lock(&t->lock);
    if (--t->unfinished == 0) pthread_cond_signal(&t->all_done);
  }
}

static void *worker(void *argument) {
  threads *t = argument;
  pthread_mutex_lock(&t->lock);
  for (;;) {
    draw_tasks(t);
    if (t->stop) break;
    pthread_cond_wait(&t->more, &t->lock);
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

static void parallel_for(void *context, int64_t count, void (*task)(void *context, int64_t i), void *task_context) {
  threads *t = context;
  pthread_mutex_lock(&t->lock);
  t->task = task, t->task_context = task_context;
  t->next = 0, t->count = t->unfinished = count;
  pthread_cond_broadcast(&t->more);
  draw_tasks(t); /* the caller works too */
  while (t->unfinished > 0) pthread_cond_wait(&t->all_done, &t->lock);
  pthread_mutex_unlock(&t->lock);
}

static void start(threads *t) {
  memset(t, 0, sizeof *t);
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->more, NULL);
  pthread_cond_init(&t->all_done, NULL);
  for (int i = 0; i < WORKERS; ++i) {
    if (pthread_create(&t->threads[i], NULL, worker, t) != 0) exit(EXIT_FAILURE);
  }
}

static void stop(threads *t) {
  pthread_mutex_lock(&t->lock);
  t->stop = 1;
  pthread_cond_broadcast(&t->more);
  pthread_mutex_unlock(&t->lock);
  for (int i = 0; i < WORKERS; ++i) pthread_join(t->threads[i], NULL);
}

/* ---- The engine. */

static float q[B * H * D], out[B * H * D];
static float cache_k[B * CAPACITY * Hk * D], cache_v[B * CAPACITY * Hk * D];
static int32_t lengths[B] = {1, 5, 17, 100};

static void require(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
  exit(EXIT_FAILURE);
}

int main(void) {
  static threads own;
  tw_thread_pool pool;
  tw_attention a;
  tw_plan plan;
  tw_exec e;
  char *memory;
  for (int i = 0; i < B * CAPACITY * Hk * D; ++i) cache_v[i] = (float)(i / (Hk * D) % CAPACITY); /* row j is j */

  TW_INIT(a);
  a.device_type = TW_CPU;
  a.threads = WORKERS + 1;
  a.q = tw_tensor_of(q, TW_F32, B, 1, H, D);
  a.k = tw_tensor_of(cache_k, TW_F32, B, CAPACITY, Hk, D);
  a.v = tw_tensor_of(cache_v, TW_F32, B, CAPACITY, Hk, D);
  a.out = tw_tensor_of(out, TW_F32, B, 1, H, D);
  a.seqused_k = tw_tensor_of(lengths, TW_I32, B, 1, 1, 1);
  require(tw_attention_plan(&a, NULL, &plan));
  printf("%s, %u bytes of workspace\n", tw_plan_kernel(&plan), (unsigned)plan.workspace_bytes);

  start(&own);
  TW_INIT(pool);
  pool.context = &own;
  pool.parallel_for = parallel_for;
  memory = malloc(plan.workspace_bytes + 255);
  if (!memory) return EXIT_FAILURE;
  TW_INIT(e);
  e.pool = &pool;
  e.workspace = memory + (256 - (uintptr_t)memory % 256) % 256;
  e.workspace_bytes = plan.workspace_bytes;

  for (int step = 0; step < 100; ++step) {
    for (int i = 0; i < B; ++i) ++lengths[i]; /* here an engine writes q and the cache's new rows */
    require(tw_attention_run(&plan, &a, NULL, &e));
    for (int i = 0; i < B; ++i) { /* all scores are equal: the mean of rows 0 to length - 1 */
      const float mean = (float)(lengths[i] - 1) / 2;
      if (fabsf(out[i * H * D] - mean) > 1e-3f) return EXIT_FAILURE;
    }
  }
  printf("100 tokens for each of %d sequences\n", B);
  stop(&own);
  free(memory);
  return EXIT_SUCCESS;
}
