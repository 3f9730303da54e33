// SPDX-License-Identifier: Apache-2.0

// Command admission decides requests with the admission plugins and policies of Kubernetes.
//
// Standard input is a JSON object:
//
//	{"policies": [POLICY...], "namespaces": [NAMESPACE...], "since": "1.30",
//	 "requests": [{"operation": "UPDATE", "object": OBJECT, "oldObject": OBJECT, "user": {"username": ...}}...]}
//
// Policies are of admissionregistration.k8s.io/v1. Each gets a binding that denies and audits. `since`
// is the oldest API server whose functions an expression may use. The answer is another:
//
//	{"policies": [{"name": ..., "errors": [{"field": ..., "message": ...}...]}...],
//	 "requests": [{"object": ..., "changed": true, "refused": ..., "messages": [...], "costs": {POLICY: {PART: UNITS}}}...]}
//
// An API server does not store a policy with errors. `refused` is the error of the request, and
// `messages` are those of all validations that failed.
package main

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
)

type question struct {
	Policies   []json.RawMessage
	Namespaces []json.RawMessage
	Since      string
	Requests   []request
}

type request struct {
	Operation string
	Object    json.RawMessage
	OldObject json.RawMessage
	User      *authenticationv1.UserInfo
}

type answer struct {
	Policies []*policy  `json:"policies"`
	Requests []decision `json:"requests"`
}

type decision struct {
	Object   runtime.Object              `json:"object"`
	Changed  bool                        `json:"changed"`
	Refused  string                      `json:"refused"`
	Messages []string                    `json:"messages"`
	Costs    map[string]map[string]int64 `json:"costs"`
}

func main() {
	given := &question{}
	must(json.NewDecoder(os.Stdin).Decode(given))
	namespaces := namespacesOf(given)
	plugins := newChain(given, namespaces)
	made := answer{Policies: plugins.policies, Requests: []decision{}}
	for _, one := range given.Requests {
		made.Requests = append(made.Requests, plugins.admit(one, namespaces))
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	must(encoder.Encode(made))
}

// namespacesOf returns those that are given, and one without labels for each other that requests name.
func namespacesOf(given *question) map[string]*corev1.Namespace {
	found := map[string]*corev1.Namespace{}
	for _, text := range given.Namespaces {
		one := &corev1.Namespace{}
		must(json.Unmarshal(text, one))
		found[one.Name] = one
	}
	for _, one := range given.Requests {
		name := nameOf(decoded(one.subject())).GetNamespace()
		if name != "" && found[name] == nil {
			found[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
	}
	for name, one := range found { // as the API server does
		metav1.SetMetaDataLabel(&one.ObjectMeta, corev1.LabelMetadataName, name)
	}
	return found
}

// subject returns the object that the request is about: one that is deleted is the old one.
func (r request) subject() json.RawMessage {
	if r.Object == nil {
		return r.OldObject
	}
	return r.Object
}

// admit returns what the plugins make of a request, in the order of an API server.
func (c *chain) admit(one request, namespaces map[string]*corev1.Namespace) decision {
	attributes := &audited{Attributes: attributesOf(one), messages: []string{}}
	before := attributes.GetObject()
	if before != nil {
		before = before.DeepCopyObject()
	}
	made := decision{Costs: c.costs(attributes, namespaces)}
	err := c.mutate(attributes)
	if err == nil {
		err = c.validating.Validate(context.Background(), attributes, things)
	}
	if err != nil {
		made.Refused = err.Error()
	}
	made.Object, made.Messages = attributes.GetObject(), attributes.messages
	made.Changed = !reflect.DeepEqual(before, made.Object)
	return made
}

func (c *chain) mutate(attributes admission.Attributes) error {
	err := c.mutating.Admit(context.Background(), attributes, things)
	for apierrors.IsServiceUnavailable(err) { // the schemas are read in the background
		time.Sleep(10 * time.Millisecond)
		err = c.mutating.Admit(context.Background(), attributes, things)
	}
	if err == nil && attributes.GetReinvocationContext().ShouldReinvoke() {
		attributes.GetReinvocationContext().SetIsReinvoke()
		err = c.mutating.Admit(context.Background(), attributes, things)
	}
	return err
}

// audited keeps the messages of failed validations: the error of a request has the first one only.
type audited struct {
	admission.Attributes

	messages []string
}

func (a *audited) AddAnnotation(_, value string) error {
	failures := []struct{ Message string }{}
	if err := json.Unmarshal([]byte(value), &failures); err != nil {
		return err
	}
	for _, one := range failures {
		a.messages = append(a.messages, one.Message)
	}
	return nil
}

func attributesOf(one request) admission.Attributes {
	var object, old runtime.Object
	if one.Object != nil {
		object = decoded(one.Object)
	}
	if one.OldObject != nil {
		old = decoded(one.OldObject)
	}
	about := decoded(one.subject())
	kind := about.GetObjectKind().GroupVersionKind()
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	sender := &user.DefaultInfo{Name: "user", Groups: []string{user.AllAuthenticated}}
	if one.User != nil {
		sender = &user.DefaultInfo{Name: one.User.Username, Groups: one.User.Groups, Extra: map[string][]string{}}
		for key, values := range one.User.Extra {
			sender.Extra[key] = values
		}
	}
	return admission.NewAttributesRecord(object, old, kind, nameOf(about).GetNamespace(), nameOf(about).GetName(), resource, "",
		admission.Operation(one.Operation), &metav1.CreateOptions{}, false, sender)
}

func nameOf(object runtime.Object) metav1.Object {
	return object.(metav1.Object)
}

// decoded returns an object; one of a kind that client-go does not have is unstructured.
func decoded(text []byte) runtime.Object {
	one, kind, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		other := &unstructured.Unstructured{}
		must(json.Unmarshal(text, &other.Object))
		return other
	}
	must(err)
	one.GetObjectKind().SetGroupVersionKind(*kind)
	return one
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
