package server

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// metrics counts what the server does.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	problems *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	watches  prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "turnstone_http_requests_total", Help: "Requests that were answered, by operation and status.",
		}, []string{"operation", "status"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "turnstone_http_problems_total", Help: "Requests that were answered with a problem, by operation and kind.",
		}, []string{"operation", "problem"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "turnstone_http_request_seconds", Help: "How long requests took, by operation.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}, []string{"operation"}),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{Name: "turnstone_http_watches", Help: "Watches that go on."}),
	}
	m.registry.MustRegister(m.requests, m.problems, m.seconds, m.watches,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// answered counts a request.
func (m *metrics) answered(operation string, a *answer, took time.Duration) {
	m.requests.WithLabelValues(operation, strconv.Itoa(a.status)).Inc()
	m.seconds.WithLabelValues(operation).Observe(took.Seconds())
	if a.problem != "" {
		m.problems.WithLabelValues(operation, a.problem).Inc()
	}
}

// metricsText sends the metrics, in the text format of Prometheus.
func (s *Server) metricsText(w *answer, r *http.Request) error {
	promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}

// health answers whether the default namespace can be read. It needs no token, and tells nothing else.
func (s *Server) health(w *answer, _ *http.Request) error {
	if err := s.healthy(); err != nil {
		s.o.Logger.Warn("the server is not healthy", "error", err)
		return fmt.Errorf("%w: it is not healthy", wire.ErrBusy)
	}
	_, _ = w.Write([]byte("ok\n")) // If the caller is gone, nobody reads it.
	return nil
}
