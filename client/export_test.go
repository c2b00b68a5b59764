package client

// CloseIdle closes connections that no call uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }
